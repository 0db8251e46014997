"""Exchanges: the ways in which a job's workers bring their gradients together, named when they join."""

PARAMETER_SERVER = "parameter_server"
"""Workers push to the shards of a parameter server, which keeps the parameters."""

FIXED_GROUP = "fixed_group"
"""Workers all-reduce in a process group that something else has formed, such as torchrun, and that stays."""

FORMED_GROUP = "formed_group"
"""Workers all-reduce in a process group that the manager forms, another one in each attempt."""

EXCHANGES = (PARAMETER_SERVER, FIXED_GROUP, FORMED_GROUP)

"""The BatchSizeManager: jobs, membership, the barrier, and every iteration's plan.

`policies` and `job` are pure: events in, plans out, no sockets, threads or clock. `service` puts them on
the wire.
"""

"""`evenpace doctor`: looks over a machine and a cluster, and says what to do about what it finds.

Each check is a function from a `Subject` to findings, beside others of its kind in a module of its own; `run`
has the table of all. No check changes anything, none may take long, and one that fails is a finding itself.
"""

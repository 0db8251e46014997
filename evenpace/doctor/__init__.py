"""`evenpace doctor`: checks of a machine and a cluster, with advice on each finding.

Each check is a function from a `Subject` to findings, in a module with others of its kind; `checkup` has the
table of all. No check changes anything, none may take long, and one that fails is a finding itself.
"""

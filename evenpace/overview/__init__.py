"""Figures of jobs, computed from a manager's records: stragglers, speed-up against an even split, timelines.

Pages, terminals, metrics and reports show them; nothing here draws or prints. `client` asks the manager,
`job_view` takes the records of iterations, and `figures` has the values that are computed from them.
`cluster_status` has who has what of a shared cluster, in words.
"""

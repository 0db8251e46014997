"""Who slows whom: what is seen of jobs from outside, worked out for pages, terminals, metrics and reports.

`client` asks the manager, `job_view` takes the records of iterations, `figures` says what is made of them.
Nothing here draws or prints.
"""

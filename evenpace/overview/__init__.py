"""Who slows whom: what is seen of jobs from outside, worked out for pages, terminals, metrics and reports.

`client` asks the manager, `iterations` holds what was recorded, `figures` says what is made of it. Nothing
here draws or prints.
"""

"""The live page about a manager's jobs: a client of the manager like any other, in a process of its own.

`server` puts together what the others are: `watch` asks the manager, once for all viewers; `views` and
`table` say what is shown of it; `stream` tells viewers that there is news; `actions` and `rights` have the
manager change a job; `hosts` and `guard` keep others out; `child` is the page as the manager starts it;
`prompt` closes connections that keep it waiting. What runs in the browser is in `static`, and loads nothing
from anywhere else.

Other tools may use what the page uses, all of it JSON (see `views` for what the values are):

    GET /healthz                     whether the page runs, and whether it reaches the manager
    GET /api/page                    the page itself: its manager, what this viewer may change, and why not
    GET /api/jobs                    all jobs, a line of figures for each
    GET /api/jobs/JOB                one: figures over all workers, members counted, the last events
    GET /api/jobs/JOB/workers        a part of the table of workers: ?sort= ?descending= ?filter= ?verdict=
                                     ?offset= ?limit=
    GET /api/jobs/JOB/timeline       its course: ?points= ?worker= (may be repeated) ?first=
    GET /api/stream                  server-sent events: `page` at once and when it changes, `jobs` when there
                                     is news of any; with ?job=JOB, `job` for that one
    POST /api/jobs/JOB/control       one change; see `actions`

Errors are `{"error": "in words"}` with a status that fits.
"""

"""The live page about a manager's jobs: a client of the manager like any other, in a process of its own.

`page_server` serves what `api` makes of the other modules, and closes connections whose requests do not come;
`polling` asks the manager, once for all viewers, and `manager_poller` keeps what it says; `views` and
`worker_table` make the values that are shown; `event_stream` sends them to viewers when they change; `rights`
says who may change a job; `request_guard` keeps foreign sites out; `page_process` is the page as the manager
starts it. What runs in the browser is in `static`, and loads nothing from anywhere else.

`cluster_page` is another page, about a shared cluster: it has the server, the polling, the event stream and
the guards in common with this one, and HTML that is made here.

Other tools may use what the page uses, all of it JSON (see `views` for what the values are):

    GET /healthz                     whether the page runs, and whether it reaches the manager
    GET /api/page                    the page itself: its manager, what this viewer may change, and why not
    GET /api/jobs                    all jobs, a line of figures for each
    GET /api/jobs/JOB                one: figures over all workers, members counted, the last events
    GET /api/jobs/JOB/workers        a part of the table of workers: ?sort= ?descending= ?filter= ?verdict=
                                     ?offset= ?limit=
    GET /api/jobs/JOB/timeline       figures over its iterations: ?points= ?worker= (may be repeated) ?last=
    GET /api/stream                  server-sent events: `page` at once and when it changes, `jobs` when there
                                     is news of any; with ?job=JOB, `job` for that one
    POST /api/jobs/JOB/control       one change; see `evenpace.job_changes`

Errors are `{"error": "in words"}` with a status that fits.
"""

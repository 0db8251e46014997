"""Reports: pages that load nothing else, with plots and numbers.

`files` writes, `style` sets the look of plots, `drawing` makes them parts of a page, `templates` fills pages,
`numbers` words. The report of a run comes from a `run_source`, which `run_list` chooses; `run_data` gathers
what it says with `run_totals` and `run_samples`, and `run_panels`, `run_lines` and `run_page` show it.
`two_runs` sets one beside another, and `two_runs_panels` and `two_runs_page` show that. `cluster_page` shows
who had what of a shared cluster, with the chart of `gantt`; the live page of one,
whose templates are here, is made by `evenpace.dashboard.cluster_page`. Nothing here measures anything.
"""

"""Reports: pages that load nothing else, with plots and numbers.

`files` writes files, `style` has the plots' style, `drawing` makes plots parts of a page, `templates` renders
pages, `numbers` formats numbers. `demo` with `demo_panels` and `demo_measures` is the demo's report. A run's
report comes from a `run_source`, which `run_list` chooses; `run_data` gathers its values with `run_totals`
and `run_samples`, and `run_panels`, `run_lines` and `run_page` show them. Nothing here measures anything.
"""

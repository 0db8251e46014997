"""Pages that stand alone, with plots and numbers.

`files` writes, `style` says how plots look, `drawing` makes them parts of a page, `pages` renders templates,
`numbers` words. `demo` with `demo_panels` and `demo_measures` is the demo's report. That of a run comes from
a `run_source`, which `run_list` chooses; `run_data` gathers what it says with `run_tally` and `run_course`,
and `run_panels`, `run_lines` and `run_page` show it. Nothing here measures anything.
"""

"""Experiments with contention, and the tables and figures of LB-BSP's evaluation on the machine at hand.

`schemes` has the schemes that are compared, and `scheme_run` the common part of their runs. `contended` runs
a scheme beside competing tasks: `contention_schedule` has which worker is disturbed when, `contention` runs
the tasks. `unequal` runs a scheme on workers of unequal speed. `analysis` and `equilibrium`
compute figures from the runs' records; `comparison`, `paper` and `overhead`, `coordination` (Figures 6 and 7)
and `migration` (Figure 8) are the experiments themselves.
"""

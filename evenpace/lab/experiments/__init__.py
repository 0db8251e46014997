"""Experiments with contention, and the tables and figures of LB-BSP's evaluation on the machine at hand.

`schemes` names what is compared, and `scheme_run` has what all runs of schemes share. `contended` runs a
scheme beside competitors: `contention_schedule` says who is disturbed when, `contention` disturbs. `unequal`
runs one on workers of unequal speed. `analysis`, `efficiency` and `equilibrium` turn what runs showed into
figures; `comparison`, `paper` and `overhead`, `coordination` (Figures 6 and 7) and `migration` (Figure 8) are
the experiments themselves.
"""

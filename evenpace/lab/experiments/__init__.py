"""Experiments with contention, and the tables and figures of LB-BSP's evaluation on the machine at hand.

`schedule` says who is disturbed when, `contention` disturbs, `schemes` names what is compared, `run` runs one
scheme, `analysis` turns its records into figures; `comparison`, `paper` and `overhead` are the experiments
themselves. `unequal` runs a scheme on workers of unequal speed; `efficiency` and `equilibrium` say what such
runs show; `coordination` (Figures 6 and 7) and `migration` (Figure 8) are the experiments.
"""

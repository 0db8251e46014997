"""Experiments with contention, and the tables and figures of LB-BSP's evaluation on the machine at hand.

`schedule` says who is disturbed when, `contention` disturbs, `schemes` names what is compared, `run` runs one
scheme, `analysis` turns its records into figures; `contention_experiment`, `paper` and `overhead` are the
experiments themselves.
"""

"""Workloads of LB-BSP's evaluation, and a transformer, which the scripts in `examples/` run.

`common` has the training loop and the options that all share; `linear`, `images` and `text` have models and
data; `generated` makes data where the user has none.
"""

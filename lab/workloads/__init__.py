"""Workloads of LB-BSP's evaluation, and a transformer, which `lab/experiments/train_workload.py` runs.

`common` has the training loop and the options that all share; `linear`, `images` and `text` have models and
data; `generated` makes data where the user has none.
"""

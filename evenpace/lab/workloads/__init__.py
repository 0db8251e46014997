"""The workloads of LB-BSP's evaluation, and a transformer: what the scripts in `examples/` run.

`common` has the training loop and the options that all share; `linear`, `images` and `text` say what is
trained, on what; `generated` makes data where the user has none.
"""

"""What runs inside a training loop: the session with the services, timing, monitors, framework adapters.

`session`, `timing`, `monitors` and `cgroups` know no framework; `torch_data` and `torch_optimizer` are the
adapter for PyTorch.
"""

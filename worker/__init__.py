"""What runs inside a training loop: the session with the services, timing, monitors, framework adapters.

`session` with what it stands on (`membership`, `shards`, `recovery`), `timing`, `monitors` and `cgroups` know
no framework; `torch_data` and `torch_optimizer` are the adapter for PyTorch; `torch_ddp`, `torch_batchnorm`
and `torch_timing` are for `torch.distributed`.
"""

"""The part of evenpace inside a training loop: the session with the services, timing, monitors, adapters.

`session` and the modules that it uses (`membership`, `shard_clients`, `job_recovery`), `data`, `partitions`
and `resources` know no framework; `torch`, `keras` and `jax` are the adapters of one framework each.
"""

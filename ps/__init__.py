"""The parameter server: weighted gradient aggregation and the optimiser's steps, one process per shard.

`shard` holds one job's part of the parameters, `optimizers` maps the wire's options to torch.optim, `jobs`
has all jobs of a process, `checkpoint_store` their checkpoints in a folder, `service` puts them on the wire.
"""

"""PyTorch: loaders, optimisers and the hooks of DistributedDataParallel."""

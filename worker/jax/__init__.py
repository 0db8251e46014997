"""JAX: loaders, optimisers and reductions."""

"""The interface for JAX scripts: `DataLoader`, `value_and_grad`, `distribute`, and optax's optimisers."""

from evenpace._extras import needing

with needing("jax"):
    from worker.jax.gradient import value_and_grad
    from worker.jax.loader import DataLoader
    from worker.jax.optimizer import distribute
    from worker.jax.rules import adam, adamw, sgd

__all__ = ["DataLoader", "adam", "adamw", "distribute", "sgd", "value_and_grad"]

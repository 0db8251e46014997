"""What a JAX training script uses: `DataLoader`, `value_and_grad`, `distribute`, and optax's optimisers."""

from typing import Any

from evenpace.context import session as current_session
from worker.jax import loader as jax_data
from worker.jax.gradient import value_and_grad
from worker.jax.optimizer import distribute
from worker.jax.rules import adam, adamw, sgd
from worker.session import Session

__all__ = ["DataLoader", "adam", "adamw", "distribute", "sgd", "value_and_grad"]


class DataLoader(jax_data.DataLoader):
    """`worker.jax.loader.DataLoader` in this process's session, unless another is given."""

    def __init__(
        self, data: Any, batch_size: int = 1, *, session: Session | None = None, **options: Any
    ) -> None:
        super().__init__(data, batch_size, session=session or current_session(), **options)

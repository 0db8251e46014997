"""What a Keras or TensorFlow training script uses: `DataLoader`, `distribute`, and checkpoints.

Keras must run on TensorFlow: KERAS_BACKEND=tensorflow, in the environment, before keras is imported.
"""

from typing import Any

from evenpace.context import session as current_session
from worker.keras import loader as keras_data
from worker.keras.model_hooks import distribute
from worker.keras.saving import Checkpoint, load, save
from worker.session import Session

__all__ = ["Checkpoint", "DataLoader", "distribute", "load", "save"]


class DataLoader(keras_data.DataLoader):
    """`worker.keras.loader.DataLoader` in this process's session, unless another is given."""

    def __init__(
        self, *data: Any, batch_size: int = 32, session: Session | None = None, **options: Any
    ) -> None:
        super().__init__(*data, batch_size=batch_size, session=session or current_session(), **options)

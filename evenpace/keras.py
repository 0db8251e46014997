"""The interface for Keras scripts: `DataLoader`, `distribute`, `micro_batches`, and checkpoints.

Keras must run on TensorFlow: KERAS_BACKEND=tensorflow, in the environment, before keras is imported.
"""

from worker.keras.loader import DataLoader
from worker.keras.micro_batches import micro_batches
from worker.keras.model_hooks import distribute
from worker.keras.saving import Checkpoint, load, save

__all__ = ["Checkpoint", "DataLoader", "distribute", "load", "micro_batches", "save"]

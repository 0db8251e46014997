"""The interface for Keras and TensorFlow scripts: `DataLoader`, `distribute`, and checkpoints.

Keras must run on TensorFlow: KERAS_BACKEND=tensorflow, in the environment, before keras is imported.
"""

from worker.keras.loader import DataLoader
from worker.keras.model_hooks import distribute
from worker.keras.saving import Checkpoint, load, save

__all__ = ["Checkpoint", "DataLoader", "distribute", "load", "save"]

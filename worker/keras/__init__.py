"""Keras: loaders, optimisers and callbacks."""

import worker.keras.backend  # noqa: F401 - first, for its error where Keras or TensorFlow is missing

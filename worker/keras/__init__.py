"""Keras: loaders, optimisers and callbacks."""

import worker.keras.backend  # noqa: F401 - first: it says what is missing

"""Keras: loaders, optimisers and callbacks."""

"""The check that Keras runs on TensorFlow, before any other module of the adapter is imported."""

try:
    import keras
except ImportError as error:
    raise ImportError(
        f"evenpace.keras needs Keras and TensorFlow ({error}): pip install 'evenpace[tensorflow]'"
    ) from error

if keras.config.backend() != "tensorflow":
    raise ImportError(
        f"evenpace.keras needs Keras with TensorFlow, but its backend is {keras.config.backend()}: "
        f"set KERAS_BACKEND=tensorflow in the environment before keras is imported"
    )

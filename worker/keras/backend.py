"""The check that Keras runs on TensorFlow, before any other module of the adapter is imported."""

from idl.errors import UnusableFrameworkError

try:
    import keras
except ImportError as error:
    raise UnusableFrameworkError(
        f"evenpace.keras needs Keras and TensorFlow ({error}): pip install 'evenpace[tensorflow]'"
    ) from error

if keras.config.backend() != "tensorflow":
    raise UnusableFrameworkError(
        f"evenpace.keras needs Keras with TensorFlow, but its backend is {keras.config.backend()}: "
        f"set KERAS_BACKEND=tensorflow in the environment before keras is imported"
    )

"""The version of evenpace, where every module of it can import it."""

__version__ = "0.1.0"

"""Images and labels in IDX files, as MNIST has them, and folders with the files of a data set."""

import gzip
import struct
from pathlib import Path

import numpy as np


def idx(array: np.ndarray) -> bytes:
    """`array` as an IDX file's bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist_files() -> dict[str, bytes]:
    """A small MNIST: 20 training and 6 test images of 5 by 4 pixels, 3 classes."""
    random = np.random.default_rng(0)

    def images(samples: int) -> np.ndarray:
        return random.integers(0, 256, (samples, 5, 4), np.uint8)

    return {
        "train-images-idx3-ubyte": idx(images(20)),
        "train-labels-idx1-ubyte": idx(np.arange(20, dtype=np.uint8) % 3),
        "t10k-images-idx3-ubyte": idx(images(6)),
        "t10k-labels-idx1-ubyte": idx(np.arange(6, dtype=np.uint8) % 3),
    }


def write(folder: Path, files: dict[str, bytes], zipped: bool = False) -> None:
    """Writes the files, by name, into `folder`."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)

"""Data sets, ready to train on: images (digits, MNIST, CIFAR-10), svmlight files, text.

They are read from their standard files in a folder of the user's; nothing is downloaded. This module knows
nothing of models, workers or batches, and returns whole arrays.
"""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DIGITS_TEST_SIZE = 360  # samples, of 1797
DIGITS_SPLIT_SEED = 0

CIFAR10_FOLDER = "cifar-10-batches-bin"  # the folder inside the standard archive
CIFAR10_SHAPE = (3, 32, 32)
CIFAR10_CLASSES = 10
CIFAR10_RECORD = 1 + math.prod(CIFAR10_SHAPE)  # bytes: the label, then the planes R, G, B

TEXT_SUFFIXES = (".txt", ".md", ".rst")  # what counts as text in a folder

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]


class DataError(ValueError):
    """The data set that the user asked for cannot be had; the message says why."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images, split for training and test."""

    name: str  # "digits", "mnist" or "cifar10"
    # Float32, (samples, channels, height, width); each channel has zero mean and unit variance.
    train_images: NDArray[np.float32]
    train_labels: Labels  # int64, (samples,); classes count from 0
    test_images: NDArray[np.float32]  # as train_images, normalised by the training images' statistics
    test_labels: Labels  # as train_labels

    @property
    def classes(self) -> int:
        """Return the number of classes: one more than the largest label."""
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1


@dataclass(frozen=True, eq=False)
class SparseSet:
    """Samples with two labels and few non-zero features each, as compressed sparse rows (CSR)."""

    columns: NDArray[np.int64]  # int64, (non-zeros,): their features, counted from 0
    values: NDArray[np.float32]  # float32, (non-zeros,): their values
    offsets: NDArray[np.int64]  # int64, (samples + 1,): where each sample begins and the last one ends
    labels: NDArray[np.float32]  # float32, (samples,), -1 or 1
    features: int  # number of features

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def rows(self, indices: NDArray[np.int64]) -> "SparseSet":
        """Return the samples at `indices`, in their order."""
        lengths = np.diff(self.offsets)[indices]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        # positions: (non-zeros,), each sample's first one plus 0, 1, ... up to its length
        positions = np.arange(offsets[-1]) + np.repeat(self.offsets[indices] - offsets[:-1], lengths)
        return SparseSet(
            self.columns[positions], self.values[positions], offsets, self.labels[indices], self.features
        )


def load(spec: str) -> ImageSet:
    """Load the data set that `spec` names.

    Args:
        spec: "digits" (scikit-learn's, needs no files), "mnist:DIR" (IDX files) or "cifar10:DIR"
            (the binary version). The files may be plain or gzipped (.gz).

    Raises:
        DataError: The spec is none of these, or a file is missing or not in its format.
    """
    name, _, folder = spec.partition(":")
    if spec == "digits":
        return _digits()
    if name == "mnist" and folder:
        return _mnist(_existing(Path(folder).expanduser()))
    if name == "cifar10" and folder:
        return _cifar10(_existing(Path(folder).expanduser()))
    raise DataError(f"Unknown data set {spec!r}: expected digits, mnist:DIR or cifar10:DIR.")


def _digits() -> ImageSet:
    # Here, as scikit-learn takes seconds to import and no other data set needs it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    train_pixels, test_pixels, train_labels, test_labels = train_test_split(
        pixels.reshape(-1, 1, 8, 8).astype(np.uint8),  # pixels are whole numbers, 0 to 16
        labels,
        test_size=DIGITS_TEST_SIZE,
        stratify=labels,
        random_state=DIGITS_SPLIT_SEED,
    )
    return _image_set("digits", train_pixels, train_labels, test_pixels, test_labels)


def _mnist(folder: Path) -> ImageSet:
    train_pixels, train_labels = _idx_pair(folder, "train")
    test_pixels, test_labels = _idx_pair(folder, "t10k")
    if train_pixels.shape[1:] != test_pixels.shape[1:]:
        raise DataError(
            f"{folder}: the test images' (channels, height, width) {test_pixels.shape[1:]} "
            f"differ from the training images' {train_pixels.shape[1:]}."
        )
    return _image_set("mnist", train_pixels, train_labels, test_pixels, test_labels)


def _cifar10(folder: Path) -> ImageSet:
    if (folder / CIFAR10_FOLDER).is_dir():
        folder /= CIFAR10_FOLDER
    # A batch that is there both plain and gzipped is one batch.
    names = sorted({path.name.removesuffix(".gz") for path in folder.glob("data_batch_*.bin*")})
    names = [name for name in names if name.endswith(".bin")]
    if not names:
        raise DataError(f"{folder}: expected data_batch_1.bin, ... (or .gz), found none.")
    batches = [_cifar10_batch(_file(folder, name)) for name in names]
    train_pixels = np.concatenate([pixels for pixels, _ in batches])
    train_labels = np.concatenate([labels for _, labels in batches])
    test_pixels, test_labels = _cifar10_batch(_file(folder, "test_batch.bin"))
    return _image_set("cifar10", train_pixels, train_labels, test_pixels, test_labels)


def _cifar10_batch(path: Path) -> tuple[Pixels, Pixels]:
    """Read one batch: pixels (samples, 3, 32, 32) and labels (samples,)."""
    content = _read(path)
    if not content or len(content) % CIFAR10_RECORD:
        raise DataError(
            f"{path}: {len(content)} bytes; expected whole records of {CIFAR10_RECORD} bytes. "
            "The file is truncated or not in CIFAR-10's binary version."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR10_RECORD)
    labels = records[:, 0]
    if labels.max() >= CIFAR10_CLASSES:
        raise DataError(f"{path}: label {labels.max()}; expected 0 to {CIFAR10_CLASSES - 1}.")
    return records[:, 1:].reshape(-1, *CIFAR10_SHAPE), labels


def _idx_pair(folder: Path, part: str) -> tuple[Pixels, Pixels]:
    """Read one part of MNIST: pixels (samples, 1, height, width) and labels (samples,)."""
    images_path = _file(folder, f"{part}-images-idx3-ubyte")
    labels_path = _file(folder, f"{part}-labels-idx1-ubyte")
    pixels = _idx(images_path, dimensions=3)
    labels = _idx(labels_path, dimensions=1)
    if len(pixels) != len(labels):
        raise DataError(
            f"{labels_path}: {len(labels)} labels for the {len(pixels)} images "
            f"of {images_path.name}; expected one for each."
        )
    return pixels[:, np.newaxis], labels


def _idx(path: Path, dimensions: int) -> Pixels:
    """Read an IDX file: magic number and sizes, big-endian, then the unsigned bytes."""
    content = _read(path)
    magic = struct.pack(">HBB", 0, 0x08, dimensions)  # 0x08: unsigned bytes
    if content[:4] != magic:
        raise DataError(
            f"{path}: begins with 0x{content[:4].hex()}; expected 0x{magic.hex()}, the magic "
            f"number of an IDX file of unsigned bytes in {dimensions} dimension(s)."
        )
    header = struct.Struct(f">4x{dimensions}I")
    if len(content) < header.size:
        raise DataError(f"{path}: truncated in its header: {len(content)} bytes; expected {header.size}.")
    shape = header.unpack_from(content)
    size = math.prod(shape)
    found = len(content) - header.size
    if not size:
        raise DataError(f"{path}: empty, of shape {shape}; expected at least one sample.")
    if found != size:
        fault = "truncated" if found < size else "too long"
        raise DataError(f"{path}: {fault}: {found} bytes of data; expected {size} for {shape}.")
    return np.frombuffer(content, np.uint8, offset=header.size).reshape(shape)


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected the one with the data set's files.")
    return folder


def _file(folder: Path, name: str) -> Path:
    """Find a file, plain or gzipped; plain comes first, as it is quicker to read."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{folder / name}: no such file, nor {name}.gz; expected one of them.")


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected a whole gzip file, but: {error}.") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from error


def _image_set(
    name: str,
    train_pixels: Pixels,
    train_labels: NDArray[np.integer],
    test_pixels: Pixels,
    test_labels: NDArray[np.integer],
) -> ImageSet:
    # mean, deviation: (1, channels, 1, 1). Bytes squared fit 16 bits, so that the variance needs
    # no copy of the data in floats; both sums are exact.
    axes = (0, 2, 3)
    mean = train_pixels.mean(axes, np.float64, keepdims=True)
    square = np.square(train_pixels, dtype=np.uint16).mean(axes, np.float64, keepdims=True)
    deviation = np.sqrt(square - mean**2)
    deviation[deviation == 0] = 1  # a constant channel becomes all zeros

    def normalised(pixels: Pixels) -> NDArray[np.float32]:
        images = pixels.astype(np.float32)
        images -= mean.astype(np.float32)
        images /= deviation.astype(np.float32)
        return images

    return ImageSet(
        name,
        normalised(train_pixels),
        train_labels.astype(np.int64),
        normalised(test_pixels),
        test_labels.astype(np.int64),
    )


def load_svmlight(*paths: Path) -> list[SparseSet]:
    """Load files in svmlight's (LIBSVM's) format, such as a9a and a9a.t, as parts of one data set.

    Features count from 0 or 1: from 1 if no file has a feature 0. Of the two labels that the files hold
    together, the larger one becomes 1, the other -1.

    Args:
        paths: Files, plain or packed (.gz, .bz2).

    Raises:
        DataError: A file is missing, is not in the format, or has no sample; or there are not two labels.
    """
    parts = [_svmlight(path) for path in paths]
    names = ", ".join(str(path) for path in paths)
    if not any(len(columns) for columns, _, _, _ in parts):
        raise DataError(f"{names}: no sample has a feature; expected LABEL INDEX:VALUE ... in each line.")
    labels = np.unique(np.concatenate([labels for _, _, _, labels in parts]))
    if len(labels) != 2:
        shown = ", ".join(f"{label:g}" for label in labels[:5]) + (", ..." if len(labels) > 5 else "")
        raise DataError(
            f"{names}: {len(labels)} different label(s), {shown}; expected two, such as -1 and 1."
        )
    lowest = min(int(columns.min()) for columns, _, _, _ in parts if len(columns))
    first = min(lowest, 1)
    features = max(int(columns.max()) for columns, _, _, _ in parts if len(columns)) + 1 - first
    return [
        SparseSet(
            columns - first, values, offsets, np.where(found == labels[1], 1, -1).astype(np.float32), features
        )
        for columns, values, offsets, found in parts
    ]


def _svmlight(
    path: Path,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64], NDArray[np.float64]]:
    """Read one file: columns as the file counts them, values, offsets and labels."""
    from sklearn.datasets import load_svmlight_file

    try:
        rows, labels = load_svmlight_file(str(path), dtype=np.float32, zero_based=True)
    except ValueError as error:
        raise DataError(f"{path}: not in svmlight's format (LABEL INDEX:VALUE ...): {error}") from error
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected a whole {path.suffix} file, but: {error}.") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}.") from error
    if not len(labels):
        raise DataError(f"{path}: has no sample; expected LABEL INDEX:VALUE ... in each line.")
    if not (np.isfinite(rows.data).all() and np.isfinite(labels).all()):
        raise DataError(f"{path}: a label or a value is not finite; expected numbers.")
    return rows.indices.astype(np.int64), rows.data, rows.indptr.astype(np.int64), labels


def load_text(path: Path) -> NDArray[np.uint8]:
    """Load a text as bytes, (bytes,).

    Args:
        path: A file, plain or .gz, or a folder, whose texts (.txt, .md, .rst) are joined in the order of
            their paths.

    Raises:
        DataError: There is no such file, no text in the folder, or nothing in the text.
    """
    paths = [path]
    if path.is_dir():
        paths = sorted(file for file in path.rglob("*") if file.suffix in TEXT_SUFFIXES and file.is_file())
        if not paths:
            raise DataError(f"{path}: expected files of text ({', '.join(TEXT_SUFFIXES)}), found none.")
    content = b"\n".join(_read(file) for file in paths)
    if not content:
        raise DataError(f"{path}: empty; expected a text.")
    return np.frombuffer(content, np.uint8)

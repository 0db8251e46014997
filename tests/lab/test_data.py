"""Data sets: what is read is what the files hold, and each bad file is named."""

import bz2
import gzip
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file

from lab.data import DataError, ImageSet, load, load_svmlight, load_text
from tests.lab.mnist import idx, mnist_files, write


def cifar10_records(samples: int, seed: int) -> np.ndarray:
    """CIFAR-10's binary records, (samples, 3073)."""
    records = np.random.default_rng(seed).integers(0, 256, (samples, 3073), np.uint8)
    records[:, 0] = np.arange(samples) % 10
    return records


def cifar10_files() -> dict[str, bytes]:
    """A small CIFAR-10: two training batches of 10 images and a test batch of 10."""
    return {
        "data_batch_1.bin": cifar10_records(10, seed=1).tobytes(),
        "data_batch_2.bin": cifar10_records(10, seed=2).tobytes(),
        "test_batch.bin": cifar10_records(10, seed=3).tobytes(),
    }


def assert_well_formed(images: ImageSet) -> None:
    """The arrays' types and shapes agree, and the training images are normalised."""
    for array, labels in (
        (images.train_images, images.train_labels),
        (images.test_images, images.test_labels),
    ):
        assert array.dtype == np.float32
        assert labels.dtype == np.int64
        assert labels.shape == array.shape[:1]
        assert array.shape[1:] == images.train_images.shape[1:]
    np.testing.assert_allclose(images.train_images.mean((0, 2, 3), np.float64), 0, atol=1e-5)
    np.testing.assert_allclose(images.train_images.std((0, 2, 3), np.float64), 1, atol=1e-5)


def test_digits_are_split_into_1437_and_360() -> None:
    """Digits need no files and come as 8 by 8 images of one channel."""
    digits = load("digits")
    assert_well_formed(digits)
    assert digits.name == "digits"
    assert digits.classes == 10
    assert digits.train_images.shape == (1437, 1, 8, 8)
    assert digits.test_images.shape == (360, 1, 8, 8)


@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_files_are_read_back(tmp_path: Path, zipped: bool) -> None:
    """IDX files, plain or gzipped, give their pixels, normalised by the training images."""
    files = mnist_files()
    write(tmp_path, files, zipped)
    mnist = load(f"mnist:{tmp_path}")
    assert_well_formed(mnist)
    assert (mnist.name, mnist.classes) == ("mnist", 3)
    assert mnist.train_images.shape == (20, 1, 5, 4)
    np.testing.assert_array_equal(mnist.test_labels, [0, 1, 2, 0, 1, 2])

    train = np.frombuffer(files["train-images-idx3-ubyte"][16:], np.uint8).astype(float)
    test = np.frombuffer(files["t10k-images-idx3-ubyte"][16:], np.uint8).reshape(6, 1, 5, 4)
    expected = (test - train.mean()) / train.std()
    np.testing.assert_allclose(mnist.test_images, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("folder", [".", "cifar-10-batches-bin"])
def test_cifar10_files_are_read_back(tmp_path: Path, folder: str, zipped: bool) -> None:
    """The batches are joined in order, from the archive's folder or the one that holds it."""
    write(tmp_path / folder, cifar10_files(), zipped)
    cifar10 = load(f"cifar10:{tmp_path}")
    assert_well_formed(cifar10)
    assert (cifar10.name, cifar10.classes) == ("cifar10", 10)
    assert cifar10.train_images.shape == (20, 3, 32, 32)
    np.testing.assert_array_equal(cifar10.train_labels, [*range(10), *range(10)])

    # (samples, channels, height, width): the planes of a record are its channels
    planes = np.concatenate([cifar10_records(10, 1), cifar10_records(10, 2)])[:, 1:].astype(float)
    planes = planes.reshape(20, 3, 32, 32)
    mean, deviation = (f(planes, axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.std))
    expected = (planes - mean) / deviation
    np.testing.assert_allclose(cifar10.train_images, expected, rtol=1e-5, atol=1e-6)


IMAGES = "train-images-idx3-ubyte"
BATCH = r"data_batch_2\.bin: .*"
WHOLE_GZIP = r"train-images-idx3-ubyte\.gz: expected a whole gzip"


@pytest.mark.parametrize(
    ("name", "file", "damage", "message"),
    [
        *(("mnist", file, None, rf"{file}: no such file, nor {file}\.gz") for file in mnist_files()),
        ("mnist", IMAGES, lambda b: b"\x00\x00\x08\x01" + b[4:], "0x00000801; expected 0x00000803"),
        ("mnist", IMAGES, lambda b: b[:-1], "truncated: 399 bytes of data; expected 400"),
        ("mnist", IMAGES, lambda b: idx(np.zeros((19, 5, 4), np.uint8)), "20 labels for the 19 images"),
        ("mnist", f"{IMAGES}.gz", lambda b: b[: len(b) // 2], WHOLE_GZIP),
        ("cifar10", "data_batch_*.bin", None, r"expected data_batch_1\.bin"),
        (
            "cifar10",
            "data_batch_2.bin",
            lambda b: b[:-1],
            BATCH + "30729 bytes; expected whole records of 3073",
        ),
        ("cifar10", "data_batch_2.bin", lambda b: b"\xc8" + b[1:], BATCH + "label 200; expected 0 to 9"),
    ],
)
def test_a_missing_or_bad_file_is_explained(
    tmp_path: Path, name: str, file: str, damage, message: str
) -> None:
    """The message names the place and says what was found and what was expected, whatever gzip raises."""
    write(tmp_path, {"mnist": mnist_files, "cifar10": cifar10_files}[name](), zipped=file.endswith(".gz"))
    for path in tmp_path.glob(file):
        path.unlink() if damage is None else path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        load(f"{name}:{tmp_path}")
    assert str(tmp_path) in str(caught.value)


def dense_samples(samples: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """A third of the features are there; the first and the last feature, and one sample is empty."""
    random = np.random.default_rng(0)
    dense = random.normal(size=(samples, features)) * (random.random((samples, features)) < 1 / 3)
    dense[0, 0] = dense[-1, -1] = 1
    dense[1] = 0
    return dense.astype(np.float32), np.where(np.arange(samples) % 3 == 0, 1, -1)


def densified(data) -> np.ndarray:
    """A `SparseSet` as an array (samples, features)."""
    dense = np.zeros((len(data), data.features), np.float32)
    dense[np.repeat(np.arange(len(data)), np.diff(data.offsets)), data.columns] = data.values
    return dense


@pytest.mark.parametrize("zero_based", [True, False])
@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress)], ids=["", "gz", "bz2"]
)
def test_svmlight_files_are_read(tmp_path: Path, zero_based: bool, suffix: str, pack) -> None:
    """Files that scikit-learn writes are read back, packed or not, counted from 0 or from 1."""
    dense, labels = dense_samples(30, 8)
    plain, path = tmp_path / "plain", tmp_path / f"data.svm{suffix}"
    dump_svmlight_file(dense, labels, str(plain), zero_based=zero_based)
    path.write_bytes(pack(plain.read_bytes()))
    (data,) = load_svmlight(path)
    assert (data.columns.dtype, data.values.dtype, data.offsets.dtype) == (np.int64, np.float32, np.int64)
    assert len(data) == 30
    np.testing.assert_allclose(densified(data), dense, rtol=1e-6)
    np.testing.assert_array_equal(data.labels, labels)


def test_svmlight_files_are_parts_of_one_set(tmp_path: Path) -> None:
    """Training and test files share the number of features, the counting and the labels."""
    train, test = tmp_path / "a9a", tmp_path / "a9a.t"
    train.write_text("0 1:2 5:1\n3 2:1\n")
    test.write_text("3 3:1\n")  # by itself it would not tell what its label means
    first, second = load_svmlight(train, test)
    assert first.features == second.features == 5
    np.testing.assert_array_equal(densified(second), [[0, 0, 1, 0, 0]])
    assert (first.labels.tolist(), second.labels.tolist()) == ([-1, 1], [1])


SVMLIGHT_FAULTS = {
    "no sample": ("# nothing\n", "has no sample"),
    "words": ("yes 1:1\n", "not in svmlight's format"),
    "csv": ("1,2,3\n", "not in svmlight's format"),
    "not sorted": ("1 3:1 2:1\n", "not in svmlight's format"),
    "not a number": ("1 3:nan\n-1 2:1\n", "not finite"),
    "one label": ("1 3:1\n1 2:1\n", r"1 different label\(s\), 1; expected two"),
    "many labels": ("1 3:1\n2 2:1\n3 2:1\n", r"3 different label\(s\), 1, 2, 3; expected two"),
    "no feature": ("1\n-1\n", "no sample has a feature"),
}


@pytest.mark.parametrize(("content", "message"), SVMLIGHT_FAULTS.values(), ids=SVMLIGHT_FAULTS)
def test_a_bad_svmlight_file_is_explained(tmp_path: Path, content: str, message: str) -> None:
    """The message names the file and says what was found and what was expected."""
    path = tmp_path / "data.svm"
    path.write_text(content)
    with pytest.raises(DataError, match=rf"data\.svm: .*{message}|data\.svm: {message}"):
        load_svmlight(path)


def test_text_is_read_as_bytes(tmp_path: Path) -> None:
    """A file gives its bytes, packed or not; a folder the texts in it, in the order of their paths."""
    (tmp_path / "b.txt").write_text("später")
    (tmp_path / "a.md").write_text("first")
    (tmp_path / "image.png").write_bytes(b"no text")
    (tmp_path / "z.gz").write_bytes(gzip.compress(b"packed"))
    assert load_text(tmp_path / "b.txt").tobytes() == "später".encode()
    assert load_text(tmp_path / "z.gz").tobytes() == b"packed"
    assert load_text(tmp_path).tobytes() == "first\nspäter".encode()

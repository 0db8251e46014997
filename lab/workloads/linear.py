"""A linear SVM and logistic regression on sparse data, such as a9a and the malicious-URL set."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from lab.data import DataError, SparseSet, load_svmlight
from lab.models.linear import SparseLinear, SparseRows, hinge_loss, logistic_loss
from lab.workloads import common, generated

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Row = tuple[NDArray[np.int64], NDArray[np.float32], float]  # a sample's columns, values and label

_TEST_SHARE = 1 / 5  # of a file that comes without test data
_SPLIT_SEED = 0


class SparseDataset(Dataset[Row]):
    """Data set of a `SparseSet`: an item is one sample's columns, values and label."""

    def __init__(self, data: SparseSet) -> None:
        self._data = data
        # Plain numbers index faster than NumPy's.
        self._offsets: list[int] = data.offsets.tolist()
        self._labels: list[float] = data.labels.tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Row:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Row]:
        """Return many items at once: a call for each would cost more than a sample's gradient does."""
        columns, values = self._data.columns, self._data.values
        offsets, labels = self._offsets, self._labels
        return [
            (columns[offsets[i] : offsets[i + 1]], values[offsets[i] : offsets[i + 1]], labels[i])
            for i in indices
        ]


def collate(samples: list[Row]) -> tuple[SparseRows, torch.Tensor]:
    """Make a batch: the samples as sparse rows, and their labels (samples,)."""
    columns, values, labels = zip(*samples, strict=True)
    offsets = np.cumsum([0, *map(len, columns)])
    rows = SparseRows(*map(torch.from_numpy, (np.concatenate(columns), np.concatenate(values), offsets)))
    return rows, torch.tensor(labels)


def parser(description: str) -> argparse.ArgumentParser:
    """Make the parser of the options of both workloads."""
    options = common.options_parser(
        description,
        data="generated (sparse features by Zipf's law), or svmlight:FILE (plain, .gz or .bz2)",
        epochs=5,
        batch_size=512,
        lr=0.5,
        weight_decay=1e-4,
    )
    options.add_argument(
        "--test-data",
        metavar="svmlight:FILE",
        help="test samples; without it, a fifth of the file is kept for that",
    )
    return options


def make_svm(options: argparse.Namespace) -> common.Workload:
    """Make a linear SVM on the data that the options name; raise DataError if it cannot be read."""
    return _make("svm", hinge_loss, options)


def make_logistic_regression(options: argparse.Namespace) -> common.Workload:
    """Make a logistic regression, as `make_svm` does."""
    return _make("logistic regression", logistic_loss, options)


def _make(name: str, loss: Loss, options: argparse.Namespace) -> common.Workload:
    """Make the workload that the options ask for; its weights begin at 0, so that no seed matters."""
    train, test = _load(options.data, options.test_data)
    model = SparseLinear(train.features)
    # The intercept is not penalised, as is usual for both.
    groups: list[dict[str, Any]] = [{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}]
    train_set = common.first_samples(SparseDataset(train), options.samples, "--samples")
    return common.Workload(
        name=name,
        data=f"{options.data}: {len(train_set)} samples of {train.features} features",
        train_set=train_set,
        test_set=common.first_samples(SparseDataset(test), options.test_samples, "--test-samples"),
        model=model,
        loss=loss,
        predict=lambda margins: torch.where(margins > 0, 1.0, -1.0),
        optimizer=torch.optim.SGD(groups, lr=options.lr, weight_decay=options.weight_decay),
        collate=collate,
    )


def _load(spec: str, test_spec: str | None) -> tuple[SparseSet, SparseSet]:
    if spec == "generated":
        if test_spec is not None:
            raise DataError(f"--test-data {test_spec!r}: generated data has test samples of its own.")
        return generated.sparse()
    if test_spec is not None:
        train, test = load_svmlight(_path(spec), _path(test_spec))
        return train, test
    (whole,) = load_svmlight(_path(spec))
    return split(whole, spec)


def split(whole: SparseSet, spec: str) -> tuple[SparseSet, SparseSet]:
    """Split off a random part for the test, the same for every worker: files may be sorted by label."""
    if len(whole) < 2:
        raise DataError(f"{spec}: one sample; expected some to train on and some to test.")
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(whole))
    kept = max(1, round(_TEST_SHARE * len(whole)))
    return whole.rows(np.sort(order[kept:])), whole.rows(np.sort(order[:kept]))


def _path(spec: str) -> Path:
    kind, _, path = spec.partition(":")
    if kind != "svmlight" or not path:
        raise DataError(f"Unknown data {spec!r}: expected generated or svmlight:FILE.")
    return Path(path).expanduser()

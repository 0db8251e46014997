"""Workload of a small transformer that learns to predict a text's next byte."""

import argparse
import importlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset

from lab.data import DataError, load_text
from lab.models.transformer import ByteTransformer
from lab.workloads import common

_TEST_SHARE = 0.1  # of the text: its end


class TextDataset(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Text, uint8, (bytes,), in pieces: an item is `context` bytes, and for each the byte that follows.

    A shorter rest at the end is not used.
    """

    def __init__(self, text: NDArray[np.uint8], context: int) -> None:
        self._text = torch.from_numpy(text.astype(np.int64))
        self._context = context

    def __len__(self) -> int:
        return max(0, len(self._text) - 1) // self._context

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"piece {index} of {len(self)}")
        start = index * self._context
        end = start + self._context
        return self._text[start:end], self._text[start + 1 : end + 1]


def parser() -> argparse.ArgumentParser:
    """Make the parser of the transformer's options."""
    options = common.options_parser(
        "A small transformer that learns to predict a text's next byte.",
        data="python-docs (the language's reference, as it comes with Python), or text:PATH (a file, or a "
        "folder of .txt, .md and .rst)",
        epochs=5,
        batch_size=128,
        lr=2e-3,
        weight_decay=0.01,
    )
    options.add_argument(
        "--context", type=common.positive, default=64, help="bytes of a sample (default: %(default)s)"
    )
    options.add_argument("--width", type=common.positive, default=64, help="default: %(default)s")
    options.add_argument("--layers", type=common.positive, default=2, help="default: %(default)s")
    common.add_network_options(options)
    return options


def make_transformer(options: argparse.Namespace) -> common.Workload:
    """Make the transformer on the text that the options name, trained by AdamW."""
    text = _load(options.data)
    border = round((1 - _TEST_SHARE) * len(text))
    train, test = (TextDataset(part, options.context) for part in (text[:border], text[border:]))
    if not len(train) or not len(test):
        raise DataError(f"{options.data}: {len(text)} bytes are too few for pieces of {options.context}.")
    torch.manual_seed(options.seed)
    try:
        model = ByteTransformer(options.context, options.width, options.layers, dropout=options.dropout)
        model.to(common.dtype_of(options))
    except ValueError as error:
        raise DataError(str(error)) from error
    train_set = common.first_samples(train, options.samples, "--samples")
    return common.Workload(
        name="transformer",
        data=f"{options.data}: {len(train_set)} pieces of {options.context} bytes",
        train_set=train_set,
        test_set=common.first_samples(test, options.test_samples, "--test-samples"),
        model=model,
        loss=byte_loss,
        predict=lambda logits: logits.argmax(-1),
        optimizer=torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=options.weight_decay),
        perplexity=True,
    )


def byte_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy in nats; logits (samples, length, 256), targets (samples, length)."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _load(spec: str) -> NDArray[np.uint8]:
    if spec == "python-docs":
        try:
            topics = importlib.import_module("pydoc_data.topics").topics
        except ImportError as error:
            raise DataError(f"{spec}: this Python came without pydoc_data; use text:PATH.") from error
        return np.frombuffer("\n".join(topics[name] for name in sorted(topics)).encode(), np.uint8)
    kind, _, path = spec.partition(":")
    if kind != "text" or not path:
        raise DataError(f"Unknown data {spec!r}: expected python-docs or text:PATH.")
    return load_text(Path(path).expanduser())

"""The demo's small network on handwritten digits: real data without any files, and quick to train."""

import argparse

import torch

from evenpace.lab.data import load
from evenpace.lab.demo.model import make_model
from evenpace.lab.workloads import common
from evenpace.lab.workloads.images import image_workload


def parser() -> argparse.ArgumentParser:
    """The options."""
    return common.options_parser(
        "The demo's small CNN on handwritten digits.",
        data="digits (scikit-learn's), mnist:DIR (IDX files) or cifar10:DIR (CIFAR-10's binary version)",
        epochs=20,
        batch_size=256,
        lr=0.1,
        weight_decay=0.0,
    )


def make_digits(options: argparse.Namespace) -> common.Workload:
    """The network on the data that the options name.

    Raises:
        DataError: The data cannot be had.
    """
    data = load(options.data)
    torch.manual_seed(options.seed)
    return image_workload("digits", data, make_model(data), options)

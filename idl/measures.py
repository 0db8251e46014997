"""The definitions of quantities derived from iterations, which pages, reports and metrics share."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from idl.noise import Noise


def work_of_batch(noise: Noise, batch: float, factor: float) -> tuple[float, float, float]:
    """Return the work of an iteration with a batch of another size, relative to one with the present size.

    The work is the progress per sample, (6) of Pollux, times the samples.

    Args:
        noise: The gradient noise; its interval is of two standard errors.
        batch: Samples of the present batch, M.
        factor: The other batch's samples, as a multiple of M.

    Returns:
        The least, the likely and the greatest work: factor * (scale + M) / (scale + factor * M), between 1
        and `factor`. The likely one is NaN where the noise scale is.

    Raises:
        ValueError: `batch` or `factor` is not above 0.
    """
    least, most = noise.efficiency_interval(factor * batch, batch)
    return factor * least, factor * noise.efficiency(factor * batch, batch), factor * most


def goodput(samples: ArrayLike, seconds: ArrayLike, efficiency: ArrayLike) -> Any:
    """Return samples per second times their efficiency: (3) of Pollux.

    Args:
        samples: Samples of one or several batches; a number, or (n,).
        seconds: Their duration, likewise.
        efficiency: Their statistical efficiency, which is the mean over samples for several batches.

    Returns:
        A number, or (n,); NaN where the efficiency is, or where the duration is not above 0.
    """
    seconds = np.where(np.greater(seconds, 0), seconds, np.nan)
    return np.multiply(samples, efficiency) / seconds


def waiting_share(waiting: ArrayLike, processing: ArrayLike) -> Any:
    """Return the share of workers' time spent waiting for others: waiting / (waiting + processing), 0 to 1.

    Args:
        waiting: Seconds of waiting, summed over iterations, for a job's share over workers as well; a number,
            or (n,).
        processing: Seconds of batch processing, summed likewise.

    Returns:
        A number, or (n,); NaN where both times are 0.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(waiting, np.add(waiting, processing))


def computing_time(processing: ArrayLike, communication: ArrayLike) -> Any:
    """Return the part of workers' batch processing time that was no communication, in seconds.

    Args:
        processing: Seconds of batch processing, (...).
        communication: Seconds of it in which gradients and parameters were transferred, (...); NaN where that
            is not known, and counts as computing.

    Returns:
        (...)
    """
    return np.subtract(processing, np.nan_to_num(communication))


def prediction_error(predicted: ArrayLike, measured: ArrayLike, axis: int | None = None) -> Any:
    """Return the root mean square of predicted speeds' relative errors, (predicted - measured) / measured.

    Args:
        predicted: Speeds in samples per second, (...); NaN where nothing was predicted.
        measured: The speeds that followed, (...); NaN where there was no sample.
        axis: The axis over which the mean is taken; None for all.

    Returns:
        A number, or an array without `axis`; NaN where no speed was both predicted and measured.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.square(np.divide(predicted, measured) - 1)
    known = np.isfinite(squares)
    count = known.sum(axis=axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(np.where(known, squares, 0.0).sum(axis=axis) / count)

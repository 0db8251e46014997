"""Profiles: a script's step times on one kind of device, measured once, before jobs run on it.

VirtualFlow's offline profiles (section 5.1.1), kept as JSON. `evenpace profile` writes them; managers start
from them, and `evenpace plan` splits batches by them. A file looks like this::

    {"device": "Tesla V100-SXM2-16GB", "script": "train.py", "micro_batch": null, "limit": 384,
     "steps": [{"batch_size": 8, "seconds": 0.041, "spread": 0.001, "count": 20, "memory": 0.12}, ...],
     "evenpace": "0.1.0"}
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from batchsize_manager.policies.step_times import StepTimes, rising
from idl.version import __version__
from predictors import DeviceKind, ModelKey, Models, Weights

_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Step:
    """Steps of one batch size."""

    batch_size: int  # samples
    seconds: float  # median of the batch processing times
    spread: float = 0.0  # seconds between their first and third quartiles
    count: int = 1  # number of steps measured
    memory: float = 0.0  # largest share of the device's memory that was in use, 0 to 1, as workers report it

    def __post_init__(self) -> None:
        _whole("batch_size", self.batch_size)
        _whole("count", self.count)
        _number("seconds", self.seconds, above=True)
        _number("spread", self.spread)
        _number("memory", self.memory)


@dataclass(frozen=True, slots=True)
class Profile:
    """The step times of a script on one kind of device (ValueError: a value is not allowed)."""

    device: str  # the kind of device, as workers name it when they join
    script: str  # name of the script
    steps: tuple[Step, ...]  # the steps measured, by increasing batch size; at least one
    # Samples of the job's micro-batches, of which all batch sizes are multiples; None for a job without.
    micro_batch: int | None = None
    limit: int | None = None  # most samples that the device can take at once; None where no limit was met
    evenpace: str = __version__  # the version that measured them

    def __post_init__(self) -> None:
        for name in ("device", "script", "evenpace"):
            if not isinstance(value := getattr(self, name), str) or not value:
                raise ValueError(f"{name} {value!r}: must be a text")
        for name in ("micro_batch", "limit"):
            if (value := getattr(self, name)) is not None:
                _whole(name, value)
        sizes = [step.batch_size for step in self.steps]
        if not sizes or sizes != sorted(set(sizes)):
            raise ValueError(f"steps of batch sizes {sizes}: must be at least one, by increasing batch size")
        odd = [size for size in sizes if size % (self.micro_batch or 1)]
        if odd:
            raise ValueError(
                f"batch_size {odd[0]}: must be a multiple of the micro-batch, {self.micro_batch}"
            )
        if self.limit is not None and self.limit < sizes[-1]:
            raise ValueError(f"limit {self.limit}: must be at least the largest batch measured, {sizes[-1]}")

    @property
    def times(self) -> StepTimes:
        """Return the times as a curve, which never falls."""
        seconds = rising([step.seconds for step in self.steps], [step.count for step in self.steps])
        return StepTimes(tuple(step.batch_size for step in self.steps), tuple(seconds))

    def content(self) -> Mapping[str, Any]:
        """Return the content of the profile's file, for JSON."""
        return asdict(self)


def read_profiles(paths: Iterable[Path]) -> list[Profile]:
    """Read files of profiles; of a folder, all that it has.

    Raises:
        ValueError: A file is no profile, a folder has none, or two are of one kind of device.
        OSError: A file cannot be read.
    """
    profiles: dict[str, tuple[Path, Profile]] = {}
    for path in paths:
        files = sorted(path.glob(f"*{_SUFFIX}")) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"profiles {str(path)!r}: no {_SUFFIX} file in this folder")
        for file in files:
            profile = _read(file)
            if profile.device in profiles:
                raise ValueError(
                    f"profiles {str(profiles[profile.device][0])!r} and {str(file)!r}: both are of device "
                    f"{profile.device!r}; give one for each kind"
                )
            profiles[profile.device] = (file, profile)
    return [profile for _, profile in profiles.values()]


def with_profiles(models: Models, profiles: Iterable[Profile]) -> Models:
    """Return models in which profiles replace the models of their kinds of device.

    Workers of these kinds start from the profiles (`ModelRegistry`). Models of single workers, by name, are
    left out, since they would prevail over those of their kinds.
    """
    before = models.get("learned", {})
    learned: dict[ModelKey, Weights] = {
        key: weights for key, weights in before.items() if isinstance(key, DeviceKind)
    }
    for profile in profiles:
        learned[DeviceKind(profile.device)] = {
            "sizes": np.array([float(step.batch_size) for step in profile.steps]),
            "times": np.array([step.seconds for step in profile.steps]),
        }
    return {**models, "learned": learned}


def _read(path: Path) -> Profile:
    try:
        content = _fields(Profile, json.loads(path.read_bytes()))
        if not isinstance(content["steps"], list):
            raise ValueError(f"steps {content['steps']!r}: must be a list")
        steps = tuple(Step(**_fields(Step, step)) for step in content["steps"])
        return Profile(**{**content, "steps": steps})
    except ValueError as error:
        raise ValueError(f"profile {str(path)!r}: {error}") from error


def _fields(kind: type[Profile] | type[Step], content: Any) -> dict[str, Any]:
    """Return the fields of a value as a file has them, or raise ValueError."""
    known = {field.name: field.default is MISSING for field in fields(kind)}
    needed = {name for name, must in known.items() if must}
    if not isinstance(content, dict) or not needed <= set(content) <= set(known):
        has = ", ".join(content) if isinstance(content, dict) else repr(content)
        raise ValueError(
            f"{kind.__name__.lower()} with {has}: must have {', '.join(n for n in known if n in needed)}, "
            f"and may have {', '.join(n for n in known if n not in needed)}"
        )
    return content


def _whole(name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} {value!r}: must be a whole number from 1")


def _number(name: str, value: Any, *, above: bool = False) -> None:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0 or (above and not value):
        raise ValueError(f"{name} {value!r}: must be a number {'above 0' if above else 'from 0'}")

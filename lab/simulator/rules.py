"""The numbers of a simulation that are no job's: interval, cost of a change, and limits of the models."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What is fixed for all jobs of a model, beyond its measurements."""

    epochs: int | None = None  # number of epochs after which a job ends; None for all that were measured
    # Most samples at once on a device, by kind; without one, the most that was measured.
    most_local: Mapping[str, int] = field(default_factory=dict)
    most_devices: int | None = None  # most devices of a job; None for no limit
    # Samples of the whole batch where no user's batch is used; None to follow the goodput.
    batch: int | None = None
    # Samples of the largest whole batch for which a policy plans, where it plans up to the user's; None for
    # the user's.
    largest: int | None = None
    memory_by_placement: bool = False  # allow a placement no larger local batches than were measured on it
    slowdown: float = 1.0  # seconds of training for each second that was measured
    restart_cost: int = 30  # seconds without progress after a change; they count as device time
    expected_cost: int = 30  # seconds that a policy takes a change to cost

    def __post_init__(self) -> None:
        for name in ("restart_cost", "expected_cost"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} s: at least 0 s is needed")
        if not self.slowdown > 0:
            raise ValueError(f"slowdown {self.slowdown}: must be above 0")


_POLLUX = {
    "bert": JobLimits(epochs=2),
    "cifar10": JobLimits(epochs=100),
    "ncf": JobLimits(epochs=10, most_devices=1, batch=32_768),
    "imagenet": JobLimits(epochs=90),
    "deepspeech2": JobLimits(epochs=80),
    "yolov3": JobLimits(epochs=50, most_local={"gpu": 8}),
}

# The published policies expect other costs than changes have in the published simulator.
_by_placement = partial(JobLimits, memory_by_placement=True)
_SIA = {
    "bert": _by_placement(epochs=2, slowdown=1.2, restart_cost=120, expected_cost=120),
    "cifar10": _by_placement(epochs=100, slowdown=1.8, restart_cost=50, expected_cost=30),
    "ncf": _by_placement(epochs=10, largest=32_768, slowdown=1.5, restart_cost=15, expected_cost=30),
    "imagenet": _by_placement(epochs=90, slowdown=1.2, restart_cost=250, expected_cost=250),
    "deepspeech2": _by_placement(
        epochs=80, most_local={"rtx": 57}, slowdown=1.2, restart_cost=25, expected_cost=25
    ),
    "yolov3": _by_placement(epochs=50, slowdown=1.2, restart_cost=80, expected_cost=45),
}

LIMITS: Mapping[str, Mapping[str, JobLimits]] = MappingProxyType({"pollux": _POLLUX, "mixed": _SIA})
"""The limits of published simulations, by the name of their rules, then by model; other models have none."""


@dataclass(frozen=True)
class Rules:
    """The clock of a simulation; the defaults are those of the published ones (Pollux, 5.3)."""

    # Seconds from one round of the policy to the next; devices that fall free in between wait.
    interval: int = 60
    # Seconds without progress after a changed placement, as device time; None for those of each model.
    restart_cost: int | None = None
    # Let a job go on at once where it moves to as many devices of the same kind on each node.
    free_moves: bool = False
    # Seconds of training between checkpoints; what came since is repeated after a loss. 0: nothing.
    checkpoint: int = 0
    notice: int = 0  # seconds before the loss of a node, in which it is not given out any more
    interference: float = 0.0  # share of the progress that jobs lose that span nodes and share one of them
    # Let jobs know models of their step times, fitted to all that was measured, and the noise of the first
    # epoch from the start. Else they learn by training, and try at most twice the devices tried before.
    profiled: bool = False

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError(f"interval {self.interval} s: at least 1 s is needed")
        for name in ("restart_cost", "checkpoint", "notice"):
            if (seconds := getattr(self, name)) is not None and seconds < 0:
                raise ValueError(f"{name.replace('_', ' ')} {seconds} s: at least 0 s is needed")
        if not 0 <= self.interference < 1:
            raise ValueError(f"interference {self.interference}: must be at least 0 and below 1")


RULES: Mapping[str, Rules] = MappingProxyType({"pollux": Rules(), "mixed": Rules(free_moves=True)})
"""The rules of published simulations by name: of like devices (Pollux), and of several kinds (Sia)."""

MOST_DEVICES = 64
"""Most devices of a job for which a policy chooses; step times were measured up to here."""

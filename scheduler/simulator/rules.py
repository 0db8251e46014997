"""The numbers of a simulation that are no job's: interval, cost of a change, and limits of the models."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """The clock of a simulation; the defaults are those of the published ones (Pollux, 5.3).

    Attributes:
        interval: Seconds from one round of the policy to the next; devices that fall free in between wait.
        restart_cost: Seconds without progress after a changed placement; they count as device time.
        checkpoint: Seconds of training from checkpoint to checkpoint; what was done since the last one is
            done again after the loss of a node. With 0, nothing is lost.
        notice: Seconds before the loss of a node, in which it is not given out any more.
        interference: Share of the progress that jobs lose that span nodes and share one of them.

    Raises:
        ValueError: The interval is not above 0, another time is negative, or the share is not from 0 to 1.
    """

    interval: int = 60
    restart_cost: int = 30
    checkpoint: int = 0
    notice: int = 0
    interference: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.interval < 1:
            raise ValueError(f"interval {self.interval} s: at least 1 s is needed")
        for name in ("restart_cost", "checkpoint", "notice"):
            if (seconds := getattr(self, name)) < 0:
                raise ValueError(f"{name.replace('_', ' ')} {seconds} s: at least 0 s is needed")
        if not 0 <= self.interference < 1:
            raise ValueError(f"interference {self.interference}: must be at least 0 and below 1")


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What is fixed for all jobs of a model, beyond its measurements.

    Attributes:
        epochs: Number of epochs after which a job ends; None for all that were measured.
        most_local: Most samples at once on a device; None for the most that was measured.
        most_devices: Most devices of a job; None for no limit.
        batch: Samples of the whole batch where no user's batch is used; None to follow the goodput.
    """

    epochs: int | None = None
    most_local: int | None = None
    most_devices: int | None = None
    batch: int | None = None


PUBLISHED_LIMITS = {
    "bert": JobLimits(epochs=2),
    "cifar10": JobLimits(epochs=100),
    "ncf": JobLimits(epochs=10, most_devices=1, batch=32_768),
    "imagenet": JobLimits(epochs=90),
    "deepspeech2": JobLimits(epochs=80),
    "yolov3": JobLimits(epochs=50, most_local=8),
}
"""The limits of the published simulations, by model; other models have none."""

MOST_DEVICES = 64
"""Most devices of a job for which a policy chooses; step times were measured up to here."""

"""A job's knowledge of its own speed: step times and noise that it has seen, and its goodput by them."""

from idl.noise import Noise
from scheduler.goodput import Goodput, Limits
from scheduler.simulator.applications import StepTime
from scheduler.throughput import Throughput, fit


class Learner:
    """What a job learns while it trains, as Pollux's agent does (Pollux, 4.1)."""

    def __init__(self, batches: Limits, total: int | None) -> None:
        """Make a learner that has seen nothing.

        Args:
            batches: The batches that are allowed.
            total: Samples of the whole batch where it is fixed.
        """
        self._batches = batches
        self._total = total
        self._steps: dict[tuple[int, int, int], tuple[float, float]] = {}
        self._noise: Noise | None = None
        self._throughput: Throughput | None = None
        self._goodput: Goodput | None = None

    @property
    def most_replicas(self) -> int:
        """The most replicas that it has trained on, 0 before any."""
        return max((replicas for _, replicas, _ in self._steps), default=0)

    @property
    def goodput(self) -> Goodput | None:
        """The goodput by all that was seen; the same object until something new is, None before anything."""
        if self._goodput is None and self._noise is not None:
            if self._throughput is None:
                self._throughput = fit(self._steps)
            self._goodput = Goodput(self._throughput, self._noise, self._batches, self._total)
        return self._goodput

    def observe(self, nodes: int, replicas: int, local: int, step_time: StepTime, noise: Noise) -> None:
        """Learn from some time of training; of a configuration the first step time counts.

        Args:
            nodes: Number of nodes.
            replicas: Number of replicas.
            local: Samples at once on each of them.
            step_time: Of this configuration.
            noise: The gradient's, as it is now.
        """
        if (nodes, replicas, local) not in self._steps:
            self._steps[nodes, replicas, local] = step_time
            self._throughput = self._goodput = None
        if noise != self._noise:
            self._noise = noise
            self._goodput = None

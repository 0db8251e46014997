"""A job's knowledge of its own speed: step times and noise that it has seen, and its goodput by them."""

from collections.abc import Mapping

from idl.noise import Noise
from lab.simulator.applications import StepTime
from scheduler.goodput import Goodput, Limits
from scheduler.throughput import Throughput, fit


class Learner:
    """What a job learns while it trains, as Pollux's agent does (Pollux, 4.1).

    Step times are learned by kind of devices, the gradient noise is the same on all of them. The total is the
    samples of the whole batch where it is fixed; models of step times that need not be learned are known by
    kind; the noise before any training is None where nothing is known of it.
    """

    def __init__(
        self,
        batches: Mapping[str, Limits],
        total: int | None,
        known: Mapping[str, Throughput] | None = None,
        noise: Noise | None = None,
    ) -> None:
        self._batches = batches
        self._total = total
        self._known = known or {}
        self._steps: dict[str, dict[tuple[int, int, int], tuple[float, float]]] = {}
        self._noise = noise
        self._throughputs: dict[str, Throughput] = {}
        self._goodputs: dict[str, Goodput] = {}

    def knows(self, kind: str) -> bool:
        """Return whether the step times on a kind need not be learned."""
        return kind in self._known

    def most_replicas(self, kind: str) -> int:
        """Return the most replicas that it has trained on, on devices of a kind; 0 before any."""
        return max((replicas for _, replicas, _ in self._steps.get(kind, ())), default=0)

    @property
    def goodputs(self) -> dict[str, Goodput]:
        """The goodputs by kind, of kinds on which it has trained, in the order of `batches`."""
        known = {kind: self.goodput(kind) for kind in self._batches}
        return {kind: goodput for kind, goodput in known.items() if goodput is not None}

    def goodput(self, kind: str) -> Goodput | None:
        """Return the goodput on a kind by all that is known, None before it has trained on an unknown one.

        It is the same object until something new is seen.
        """
        seen = kind in self._known or kind in self._steps
        if kind not in self._goodputs and self._noise is not None and seen:
            if kind not in self._throughputs:
                self._throughputs[kind] = self._known.get(kind) or fit(self._steps[kind])
            limits = self._batches[kind]
            self._goodputs[kind] = Goodput(self._throughputs[kind], self._noise, limits, self._total)
        return self._goodputs.get(kind)

    def observe(
        self, kind: str, nodes: int, replicas: int, local: int, step_time: StepTime, noise: Noise
    ) -> None:
        """Learn from training with `local` samples at once on each replica, and the noise as it is now.

        Of a configuration the first step time counts.
        """
        steps = self._steps.setdefault(kind, {})
        if (nodes, replicas, local) not in steps and kind not in self._known:
            steps[nodes, replicas, local] = step_time
            self._throughputs.pop(kind, None)
            self._goodputs.pop(kind, None)
        if noise != self._noise:
            self._noise = noise
            self._goodputs.clear()

"""Alg. 2 of LB-BSP: move samples from the straggler to the leader, step by step."""

import math
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from batchsize_manager.policies.base import MEMORY_GUARD, Participant, Policy, Split
from batchsize_manager.policies.solver import split
from idl.records import WorkerRecord

STEP_SIZE, FAST_OBSERVATION_WINDOW = 5, 5  # samples, iterations; line 3
FINE_STEP_SIZE, FINE_OBSERVATION_WINDOW = 1, 20  # line 13


class LeaderStraggler(Policy):
    """Alg. 2: approach the equilibrium of batch processing times in two phases.

    The fast-approach phase takes large steps after a short observation window. Once a leader has been behind
    its straggler before, the fine-tune phase takes small steps after a long window.

    Bounds and granularity narrow the paper's rule: the leader is the fastest worker that can take a step
    more, and a step is of whole units, and a multiple of both workers' granularity. Batches that are not of
    the usual size (the last of an epoch) are split in proportion, and their times ignored. When members
    change, their batch sizes are scaled to the same sum, a newcomer starting with the average, and the
    algorithm starts again.

    Args:
        step_size: Samples moved at a time in the fast-approach phase; the paper's Δ.

    Attributes:
        step_size: Samples moved at a time.
        observation_window: Iterations in all of which the leader must have been faster than the straggler.
    """

    def __init__(self, step_size: int = STEP_SIZE) -> None:
        self._fast_step_size = step_size
        self._approach()
        self._members: Sequence[Participant] = ()
        self._batch_sizes: list[int] = []  # (workers,) units of the usual batch; empty until they are known
        self._usual_total = 0
        self._begun = False  # whether anything was split
        self._forget()

    def set_members(self, members: Sequence[Participant]) -> None:
        """Set the members, and scale their batch sizes to the usual sum; see `Policy.set_members`."""
        previous = dict(zip((m.name for m in self._members), self._batch_sizes, strict=False))
        if [member.name for member in members] != [member.name for member in self._members]:
            self._approach()
        self._members = members
        if previous:
            average = sum(previous.values()) / len(previous)
            shares = [float(previous.get(member.name, average)) for member in members]
            self._batch_sizes = self._scale(shares, self._usual_total)
        self._forget()

    def expect(self, total: int, unit: int = 1) -> None:
        """Set the usual batch; batch sizes keep their proportions. See `Policy.expect`."""
        super().expect(total, unit)
        self._usual_total = total

    def observe(self, observations: Mapping[str, WorkerRecord]) -> None:
        """Add an iteration of the current members and their usual batch to the observation window.

        Observations before the first split show how another policy had split; this one begins there.
        """
        seen = [observations.get(member.name) for member in self._members]
        if any(observation is None for observation in seen):
            return
        complete = [observation for observation in seen if observation is not None]
        if sum(observation.batch_size for observation in complete) != self._usual_total:
            return
        if not self._begun:
            sizes = [observation.batch_size for observation in complete]
            if sizes != self._batch_sizes:
                self._forget()
            self._batch_sizes = sizes
        times = np.array([observation.batch_processing_time for observation in complete])
        self._window.append(times)
        self._was_behind |= times[:, None] > times[None, :]
        self._memory = np.array([observation.memory_usage for observation in complete])
        self._fresh = True

    def split(self, total: int) -> Split:
        """Split the next batch, moving a step of samples if one is due; see `Policy.split`."""
        if not self._batch_sizes:
            self._usual_total = self._usual_total or total
            self._batch_sizes = self._scale([1.0] * len(self._members), self._usual_total)
        elif not self._begun or sum(self._batch_sizes) != self._usual_total:
            sizes = self._scale([float(size) for size in self._batch_sizes], self._usual_total)
            if sizes != self._batch_sizes:
                self._batch_sizes = sizes
                self._forget()
        self._begun = True
        if total != self._usual_total:
            return Split(self._scale([float(size) for size in self._batch_sizes], total))
        warnings: tuple[str, ...] = ()
        if self._fresh:
            self._fresh = False
            warnings = self._update_batch_sizes()
        return Split(list(self._batch_sizes), warnings)

    def _approach(self) -> None:
        """Begin the fast-approach phase (line 3)."""
        self.step_size = self._fast_step_size
        self.observation_window = FAST_OBSERVATION_WINDOW

    def _update_batch_sizes(self) -> tuple[str, ...]:
        """Run lines 5 to 13, once for each iteration observed; return warnings."""
        times = self._window[-1]  # (workers,)
        straggler = int(times.argmax())
        able = [i for i in range(len(times)) if i != straggler and self._can_lead(i, straggler)]
        if not able:
            return ()
        leader = min(able, key=lambda i: times[i])
        step = self._step(leader, straggler)
        # Line 8: x_straggler <= step size, where the minimum is one sample.
        if self._batch_sizes[straggler] - step < self._members[straggler].bounds.minimum:
            return (
                f"{self._members[straggler].name} is the straggler with "
                f"{self._batch_sizes[straggler] * self.unit} samples and cannot give up {step * self.unit}: "
                f"remove this straggler, the job is faster without it",
            )
        window = list(self._window)[-self.observation_window :]
        if len(window) == self.observation_window and all(past[leader] < past[straggler] for past in window):
            self._batch_sizes[leader] += step
            self._batch_sizes[straggler] -= step
        elif self._was_behind[leader, straggler]:
            self.step_size = FINE_STEP_SIZE
            self.observation_window = FINE_OBSERVATION_WINDOW
        return ()

    def _can_lead(self, worker: int, straggler: int) -> bool:
        room = self._members[worker].bounds.maximum - self._batch_sizes[worker]
        return self._memory[worker] <= MEMORY_GUARD and room >= self._step(worker, straggler)

    def _step(self, one: int, other: int) -> int:
        """Return the units of a step between two workers: the fewest that have `step_size` samples."""
        grain = math.lcm(self._members[one].bounds.granularity, self._members[other].bounds.granularity)
        return -(-self.step_size // (grain * self.unit)) * grain

    def _scale(self, shares: Sequence[float], total: int) -> list[int]:
        return split(
            [max(share, 1e-9) for share in shares],
            total,
            [member.bounds for member in self._members],
        )

    def _forget(self) -> None:
        workers = len(self._members)
        self._window: deque[np.ndarray] = deque(maxlen=FINE_OBSERVATION_WINDOW)  # of (workers,)
        # [i, j]: whether worker i has ever taken longer than worker j
        self._was_behind = np.zeros((workers, workers), dtype=bool)
        self._memory = np.zeros(workers)  # (workers,), the latest
        self._fresh = False  # whether something was observed since the last split

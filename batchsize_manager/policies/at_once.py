"""Numbers of micro-batches that workers compute at once: tried upwards, fitted by kind of device, and chosen.

The throughput of k micro-batches at once is α ln k + β (JABAS, equation 1). Here it is relative to that of
one at a time, 1 + γ ln k with γ = α / β, so that it stays right when a worker's speed changes. A wave of k
takes ρ(k) = k / (1 + γ ln k) times as long as one micro-batch (equation 2), and n micro-batches take their
full waves and a last one: the n_GA + 1 waves of JABAS.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import median

import numpy as np

from batchsize_manager.policies.base import Participant, Policy, PolicyWrapper, Split
from batchsize_manager.policies.waves import Waves
from idl.bounds import MOST_AT_ONCE
from idl.records import WorkerRecord
from predictors import DeviceKind, ModelKey, Models, Weights

MODEL = "at_once"
"""The name of what was learned, among models."""

_WINDOW = 5  # iterations whose median counts, after one that does not
_PAYS = 1.05  # factor of the throughput, from which on twice as many at once are kept
_MOST_GAIN = 1 / math.log(2)  # γ with which two at once take no longer than one


@lru_cache(maxsize=1024)  # workers of one kind of device have equal waves, in round after round
def _waves(relative: tuple[tuple[int, float], ...], most: int, at_once: int | None) -> Waves:
    """Return the times of waves of 1 to `most` micro-batches; see `Trial`.

    γ is fitted by least squares over the numbers that have paid, with their relative throughputs.
    """
    paid, throughputs = zip(*relative, strict=True)
    logs = np.log(paid)
    gain = np.clip(logs @ (np.array(throughputs) - 1) / max(logs @ logs, 1e-300), 0.0, _MOST_GAIN)
    numbers = np.arange(1, most + 1)
    times = np.maximum.accumulate(numbers / (1 + gain * np.log(numbers)))
    return Waves(tuple(times.tolist()), at_once=at_once)


@dataclass
class Trial:
    """The measured gains of one kind of device, and the number at once that is tried at present."""

    # By number at once, the throughput relative to one at a time, of the numbers that have paid.
    relative: dict[int, float] = field(default_factory=lambda: {1: 1.0})
    trying: int | None = None  # the number that is measured at present; None if none is
    stopped: bool = False  # true once the next number did not pay
    _measured: dict[str, list[float]] = field(default_factory=dict)  # by worker; see `_measure`
    _alone: dict[str, float] = field(default_factory=dict)  # by worker, seconds of one micro-batch alone

    @property
    def most(self) -> int:
        """Return the largest number that has paid."""
        return max(self.relative)

    def waves(self, most: int, at_once: int | None = None) -> Waves:
        """Return the times ρ of waves of 1 to `most` micro-batches; see `Waves` for `at_once`."""
        return _waves(tuple(self.relative.items()), most, at_once)

    def observe(self, worker: str, number: int, at_once: int, seconds: float) -> None:
        """Observe a worker's iteration of `number` micro-batches, `at_once` of them at once."""
        wanted = at_once == self.trying and number >= at_once if self.trying else at_once <= self.most
        measured = self._measured.setdefault(worker, [])
        if wanted and len(measured) <= _WINDOW:
            measured.append(self._measure(worker, number, at_once, seconds))

    def advance(self, rooms: Mapping[str, int]) -> str | None:
        """Judge what is tried once it is measured, and try the next number.

        Args:
            rooms: The most micro-batches at once that each worker can have, by its bound and its share.

        Returns:
            The finding in words; None if there is none yet.
        """
        target = self.trying or self._next(rooms)
        able = [worker for worker, room in rooms.items() if room >= target]
        if self.trying is not None:
            able = [worker for worker in able if worker in self._alone]
        if self.stopped or target == self.most or not able:
            self.trying = None
            self._measured.clear()
            return None
        if any(len(self._measured.get(worker, ())) <= _WINDOW for worker in able):
            return None
        typical = {worker: median(self._measured[worker][1:]) for worker in able}
        self._measured.clear()
        found = None
        if self.trying is None:
            self._alone = typical
        else:
            wave = math.exp(sum(map(math.log, typical.values())) / len(typical))
            found = f"{target} micro-batches at once have {target / wave:.2f} times the throughput of one"
            self.stopped = target / wave < _PAYS * self.relative[self.most]
            if self.stopped:
                found += f", which does not pay: at most {self.most} from now on"
            else:
                self.relative[target] = target / wave
        following = self._next(rooms)
        self.trying = following if following > self.most and not self.stopped else None
        return found

    def _next(self, rooms: Mapping[str, int]) -> int:
        """Return the number to be tried next; `most` if there is room for no more."""
        return max(self.most, min(2 * self.most, max(rooms.values(), default=1)))

    def _measure(self, worker: str, number: int, at_once: int, seconds: float) -> float:
        """Return the seconds of one micro-batch alone or, for a number that is tried, a wave's ρ."""
        waves = self.waves(at_once, at_once)
        if self.trying is None:
            return seconds / waves.time(number)
        full, last = divmod(number, at_once)
        rest = waves.seconds[last - 1] if last else 0.0
        return max((seconds / self._alone.get(worker, seconds) - rest) / full, 1e-3)


class Gains:
    """The throughput that a job's members gain by several micro-batches at once.

    Args:
        known: Models learned before, by worker (`ModelRegistry`).

    Raises:
        ValueError: A model has not the form of this module's.
    """

    def __init__(self, known: Mapping[ModelKey, Weights] | None = None) -> None:
        self._known = {} if known is None else known
        for name, weights in self._known.items():
            _restored(name, weights)
        self._members: dict[str, Participant] = {}
        self._trials: dict[ModelKey, Trial] = {}  # by kind, or by worker where it does not name its kind
        self._found: list[str] = []  # in words

    def set_members(self, members: Sequence[Participant]) -> None:
        """Set the members; see `Policy.set_members`."""
        self._members = {member.name: member for member in members if member.bounds.at_once > 1}
        trials = {}
        for member in self._members.values():
            kind, known = _key(member), self._known.get(member.name)
            if kind not in trials:
                fresh = Trial() if known is None else _restored(member.name, known)
                trials[kind] = self._trials.get(kind, fresh)
        self._trials = trials

    @property
    def matters(self) -> bool:
        """Return whether any member can compute several micro-batches at once."""
        return bool(self._members)

    def observe(self, observations: Mapping[str, WorkerRecord]) -> None:
        """Take in a complete iteration; see `Policy.observe`."""
        rooms: dict[ModelKey, dict[str, int]] = {kind: {} for kind in self._trials}
        for name, member in self._members.items():
            seen = observations.get(name)
            if seen is None or not seen.batch_size:
                continue
            kind = _key(member)
            self._trials[kind].observe(name, seen.batch_size, seen.at_once, seen.batch_processing_time)
            rooms[kind][name] = min(seen.batch_size, member.bounds.at_once)
        for kind, its in rooms.items():
            if its and (found := self._trials[kind].advance(its)) is not None:
                self._found.append(f"{kind}: {found}")

    def take_found(self) -> list[str]:
        """Return the findings since the last call, in words."""
        found, self._found = self._found, []
        return found

    def waves(self, name: str) -> Waves | None:
        """Return the times ρ of a worker's waves from now on; None for one that computes one at once."""
        member = self._members.get(name)
        if member is None:
            return None
        trial = self._trials[_key(member)]
        trying = self._tried_by(member)
        return trial.waves(trying or min(trial.most, member.bounds.at_once), trying)

    def alone(self, name: str, seen: WorkerRecord) -> float | None:
        """Return the units that would have taken a worker as long, one after another.

        Returns:
            Units; None for a number at once that is not known yet.
        """
        member = self._members.get(name)
        if member is None:
            return seen.batch_size
        trial = self._trials[_key(member)]
        if seen.at_once > trial.most:
            return None
        return trial.waves(seen.at_once, seen.at_once).time(seen.batch_size)

    def choose(self, name: str, count: int) -> int:
        """Return how many of `count` micro-batches a worker is to compute at once."""
        waves = self.waves(name)
        return 1 if waves is None or not count else waves.best_at_once(count)

    def models(self) -> Models:
        """Return what was learned, by worker; see `Policy.models`."""
        learned: dict[ModelKey, Weights] = {}
        for name, member in self._members.items():
            trial = self._trials[_key(member)]
            if trial.stopped or trial.most > 1:
                numbers, relative = zip(*trial.relative.items(), strict=True)
                learned[name] = {
                    "numbers": np.array(numbers, dtype=float),
                    "throughputs": np.array(relative),
                    "stopped": np.array([float(trial.stopped)]),
                }
        return {MODEL: learned} if learned else {}

    def _tried_by(self, member: Participant) -> int | None:
        """Return the number that a worker tries at present, if it can."""
        trying = self._trials[_key(member)].trying
        return trying if trying is not None and trying <= member.bounds.at_once else None


class SeveralAtOnce(PolicyWrapper):
    """A wrapper that adds to another policy's splits how many micro-batches each worker computes at once.

    Args:
        policy: The other policy.
        gains: The gains that are known, which the other policy may use, too.
    """

    def __init__(self, policy: Policy, gains: Gains) -> None:
        super().__init__(policy)
        self._gains = gains
        self._names: list[str] = []
        self._usual = 0  # units of a whole batch

    def set_members(self, members: Sequence[Participant]) -> None:
        """Set the members of both; see `Policy.set_members`."""
        self._gains.set_members(members)
        self._names = [member.name for member in members]
        self.policy.set_members(members)

    def expect(self, total: int, unit: int = 1) -> None:
        """Note the size of whole batches; see `Policy.expect`."""
        super().expect(total, unit)
        self._usual = total

    def observe(self, observations: Mapping[str, WorkerRecord]) -> None:
        """Learn from an iteration of a whole batch; see `Policy.observe`."""
        if sum(seen.batch_size for seen in observations.values()) >= self._usual:
            self._gains.observe(observations)  # an epoch's last batch has no room for as many at once
        self.policy.observe(observations)

    def split(self, total: int) -> Split:
        """Split the next batch as the other policy does, with numbers at once; see `Policy.split`."""
        split = self.policy.split(total)
        if not self._gains.matters:
            return split
        numbers = [self._gains.choose(*part) for part in zip(self._names, split.counts, strict=True)]
        return replace(split, at_once=numbers, warnings=(*split.warnings, *self._gains.take_found()))

    def models(self) -> Models:
        """Return the models of both; see `Policy.models`."""
        return {**self.policy.models(), **self._gains.models()}


def _key(member: Participant) -> ModelKey:
    """Return the key of a member's trial, which it shares with those of its kind."""
    return DeviceKind(member.kind) if member.kind else member.name


def _restored(key: ModelKey, weights: Weights) -> Trial:
    """Return the trial that a model of a worker or its kind describes, or raise ValueError."""
    numbers, relative, stopped = (
        np.asarray(weights.get(name, ())).ravel() for name in ("numbers", "throughputs", "stopped")
    )
    form = 0 < len(numbers) == len(relative) and len(stopped) == 1 and (relative > 0).all()
    if not form or numbers[0] != 1 or (np.diff(numbers) < 1).any() or not numbers[-1] <= MOST_AT_ONCE:
        raise ValueError(
            f"model of worker {str(key)!r}: 'numbers' must ascend from 1 to at most {MOST_AT_ONCE}, with as "
            f"many 'throughputs' above 0, but they are {numbers.tolist()} and {relative.tolist()}"
        )
    known = zip(numbers.astype(int).tolist(), relative.tolist(), strict=True)
    return Trial(dict(known), stopped=bool(stopped[0]))

"""Fitted models of a job by worker and by kind of device, from which workers that join start.

The registry must not know the content of models, only their names.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from batchsize_manager.policies.base import Participant, Policy, PolicyWrapper
from predictors import DeviceKind, ModelKey, Models, Weights

KINDS = 100
"""Kinds of devices whose models are kept for each predictor, those used last."""

UNKNOWN = DeviceKind("")
"""The kind of a worker that does not name its device; newcomers do not start as another such worker."""


class ModelRegistry(Mapping[str, Mapping[ModelKey, Weights]]):
    """Models by predictor, then by worker; a member without a model of its own has its kind's.

    A worker's model stays after the worker has left, should it come back, until a newcomer takes its place:
    there are no more workers' models than there have been members at once. The model of a kind is that of
    its longest-standing member, or of the last one that it had.

    Args:
        models: The first models. If no kinds are among them, the first worker's stands for the unknown kind:
            some predictors take any model that there is.
    """

    def __init__(self, models: Models) -> None:
        self._kind_of: dict[str, DeviceKind] = {}  # by member
        self._most = 0  # members at once
        self._learned = {name: _PredictorModels(self._kind_of, learned) for name, learned in models.items()}

    def __getitem__(self, predictor: str) -> Mapping[ModelKey, Weights]:
        """Return a view of one predictor's models, which follows all changes; empty without any."""
        return self._learned.setdefault(predictor, _PredictorModels(self._kind_of, {}))

    def __iter__(self) -> Iterator[str]:
        return (predictor for predictor, learned in self._learned.items() if learned)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def update(self, models: Models) -> None:
        """Take in the latest models of the members."""
        for predictor, learned in models.items():
            ours = self._learned.setdefault(predictor, _PredictorModels(self._kind_of, {}))
            ours.update(learned)
            ours.settle(self._most)

    def set_members(self, members: Sequence[Participant]) -> None:
        """Set the members, and forget workers whose place they have taken."""
        self._kind_of.clear()
        self._kind_of.update((member.name, DeviceKind(member.kind)) for member in members)
        self._most = max(self._most, len(members))
        for learned in self._learned.values():
            learned.settle(self._most)

    def models(self) -> Models:
        """Return a copy of all models."""
        return {predictor: dict(self[predictor]) for predictor in self}


def of_kinds(models: Models) -> Models:
    """Return the models of kinds alone."""
    return {
        predictor: {key: weights for key, weights in learned.items() if isinstance(key, DeviceKind)}
        for predictor, learned in models.items()
    }


class _PredictorModels(Mapping[ModelKey, Weights]):
    """One predictor's models, by worker and kind.

    Args:
        kind_of: The kinds by member; shared, and changed by the registry.
        learned: The first models.
    """

    def __init__(self, kind_of: Mapping[str, DeviceKind], learned: Mapping[ModelKey, Weights]) -> None:
        self._kind_of = kind_of
        self._kinds: dict[DeviceKind, Weights] = {}  # the kinds used last are last
        self._workers: dict[str, Weights] = {}  # the latest members are last
        for key, weights in learned.items():
            if isinstance(key, DeviceKind):
                self._kinds[key] = weights
            else:
                self._workers[key] = weights
        if self._workers and not self._kinds:
            self._kinds[UNKNOWN] = next(iter(self._workers.values()))
        self._forget_kinds()

    def __getitem__(self, key: ModelKey) -> Weights:
        if isinstance(key, DeviceKind):
            return self._kinds[key]
        if key in self._workers:
            return self._workers[key]
        kind = self._kind_of.get(key, UNKNOWN)
        if kind == UNKNOWN:
            raise KeyError(key)
        return self._kinds[kind]

    def __iter__(self) -> Iterator[ModelKey]:
        yield from self._workers
        yield from self._kinds

    def __len__(self) -> int:
        return len(self._workers) + len(self._kinds)

    def update(self, learned: Mapping[ModelKey, Weights]) -> None:
        """Take in models of members, in the order in which they joined."""
        for worker, weights in learned.items():
            assert isinstance(worker, str), "policies learn of workers alone"
            self._workers.pop(worker, None)
            self._workers[worker] = weights

    def settle(self, workers: int) -> None:
        """Update the members' kinds, and forget all but `workers` workers, those that left first."""
        members = [worker for worker in self._kind_of if worker in self._workers]
        for kind, worker in {self._kind_of[worker]: worker for worker in reversed(members)}.items():
            self._kinds.pop(kind, None)
            self._kinds[kind] = self._workers[worker]
        self._forget_kinds()
        excess = len(self._workers) - workers
        gone = (worker for worker in self._workers if worker not in self._kind_of)
        for worker in list(itertools.islice(gone, max(0, excess))):
            del self._workers[worker]

    def _forget_kinds(self) -> None:
        while len(self._kinds) > KINDS:
            del self._kinds[next(iter(self._kinds))]


class RegistryPolicy(PolicyWrapper):
    """A wrapper that keeps what another policy has learned, also of workers that have left.

    Args:
        policy: The other policy, which starts from the registry's models for workers that join.
    """

    def __init__(self, policy: Policy, registry: ModelRegistry) -> None:
        super().__init__(policy)
        self._registry = registry

    def set_members(self, members: Sequence[Participant]) -> None:
        """Set the members of the registry and of the policy; see `Policy.set_members`."""
        self._registry.update(self.policy.models())
        self._registry.set_members(members)
        self.policy.set_members(members)

    def models(self) -> Models:
        """Return all models: of members, of workers that left, of kinds, and of earlier policies."""
        self._registry.update(self.policy.models())
        return self._registry.models()

"""What a job has learned of workers and of kinds of devices, so that who joins need not start from nothing.

It knows models by name alone, not what they say.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from batchsize_manager.policies.base import Around, Participant, Policy
from predictors import Models, Weights

KINDS = 100
"""Kinds of devices whose models are kept, for each predictor; of others, those used last."""

KIND_PREFIX = "kind\t"
"""Begins the names of kinds among those of workers, which cannot have a tab."""

UNKNOWN = ""
"""The kind of a worker that does not say its own; newcomers do not start as another such worker."""


class Known(Mapping[str, Mapping[str, Weights]]):
    """Models by predictor, then by worker; of a member that has none, its kind's.

    A worker's model stays after it has gone, should it come back, until others have its place: there are no
    more of them than there have been members at once. The model of a kind is that of the member of this kind
    that has been there for longest, or was when the last had gone.

    Args:
        models: To begin with. Where no kinds are among them, the first worker's stands for an unknown kind:
            some predictors take whatever there is.
    """

    def __init__(self, models: Models) -> None:
        self._kind_of: dict[str, str] = {}  # by member
        self._most = 0  # members at once
        self._learned = {name: _Learned(self._kind_of, learned) for name, learned in models.items()}

    def __getitem__(self, predictor: str) -> Mapping[str, Weights]:
        """A view of one predictor's, which follows all changes; empty where there is nothing yet."""
        return self._learned.setdefault(predictor, _Learned(self._kind_of, {}))

    def __iter__(self) -> Iterator[str]:
        return (predictor for predictor, learned in self._learned.items() if learned)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def update(self, models: Models) -> None:
        """Take in what has been learned of the members since."""
        for predictor, learned in models.items():
            ours = self._learned.setdefault(predictor, _Learned(self._kind_of, {}))
            ours.update(learned)
            ours.settle(self._most)

    def set_members(self, members: Sequence[Participant]) -> None:
        """Note who the members are, and forget those whose place they have."""
        self._kind_of.clear()
        self._kind_of.update((member.name, member.kind) for member in members)
        self._most = max(self._most, len(members))
        for learned in self._learned.values():
            learned.settle(self._most)

    def models(self) -> Models:
        """A copy of all of it."""
        return {predictor: dict(self[predictor]) for predictor in self}


def of_kinds(models: Models) -> Models:
    """The models of kinds alone."""
    return {
        predictor: {name: weights for name, weights in learned.items() if name.startswith(KIND_PREFIX)}
        for predictor, learned in models.items()
    }


class _Learned(Mapping[str, Weights]):
    """What one predictor has learned, by worker and kind.

    Args:
        kind_of: By member; changed by who made it.
        learned: To begin with.
    """

    def __init__(self, kind_of: Mapping[str, str], learned: Mapping[str, Weights]) -> None:
        self._kind_of = kind_of
        self._kinds: dict[str, Weights] = {}  # those used last come last
        self._workers: dict[str, Weights] = {}  # those who were members last come last
        for name, weights in learned.items():
            if name.startswith(KIND_PREFIX):
                self._kinds[name.removeprefix(KIND_PREFIX)] = weights
            else:
                self._workers[name] = weights
        if self._workers and not self._kinds:
            self._kinds[UNKNOWN] = next(iter(self._workers.values()))
        self._forget_kinds()

    def __getitem__(self, name: str) -> Weights:
        if name in self._workers:
            return self._workers[name]
        kind = name.removeprefix(KIND_PREFIX) if name.startswith(KIND_PREFIX) else self._kind_of.get(name)
        if kind is None or (kind == UNKNOWN and name in self._kind_of):
            raise KeyError(name)
        return self._kinds[kind]

    def __iter__(self) -> Iterator[str]:
        yield from self._workers
        yield from (KIND_PREFIX + kind for kind in self._kinds)

    def __len__(self) -> int:
        return len(self._workers) + len(self._kinds)

    def update(self, learned: Mapping[str, Weights]) -> None:
        """Take in models of members, in the order in which they came; others' may follow."""
        for worker, weights in learned.items():
            self._workers.pop(worker, None)
            self._workers[worker] = weights

    def settle(self, workers: int) -> None:
        """Let the members' kinds be as they are now, and keep so many workers, those who left last."""
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


class Remembering(Around):
    """Remembers what another policy has learned, also of who has gone.

    Args:
        policy: The other; it looks up in `known` who joins.
        known: What is known so far.
    """

    def __init__(self, policy: Policy, known: Known) -> None:
        super().__init__(policy)
        self._known = known

    def set_members(self, members: Sequence[Participant]) -> None:
        """See `Policy`."""
        self._known.update(self.policy.models())
        self._known.set_members(members)
        self.policy.set_members(members)

    def models(self) -> Models:
        """All that is known: of members, of who has gone, of kinds, and what other policies had learned."""
        self._known.update(self.policy.models())
        return self._known.models()

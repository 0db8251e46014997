"""The interface of policies, and the values that they take and return."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from idl.bounds import Bounds
from idl.records import WorkerRecord
from predictors import Fit, Models, Weights

MEMORY_GUARD = 0.95
"""Share of its memory in use from which on a worker gets no more samples than it has had (Alg. 2, line 5)."""

_TOTALS = 4  # whose splits are remembered


@dataclass(frozen=True, slots=True)
class Participant:
    """A worker as a policy sees it."""

    name: str  # the worker's name
    bounds: Bounds  # the batch sizes that it can take, in units
    kind: str = ""  # the kind of device that it computes on; empty where it does not name one


@dataclass(frozen=True, slots=True)
class Split:
    """A policy's answer, in the order of the members.

    Attributes:
        dispensable: Workers without which the job would be faster, by name, each with a sentence that says
            why and by how much. If there are several, the sentences hold without all of them together.
    """

    counts: list[int]  # units of each worker
    warnings: tuple[str, ...] = ()  # messages for the user
    # Samples per second, NaN where unknown; empty if the policy does not predict.
    predicted_speeds: Sequence[float] = ()
    at_once: Sequence[int] = ()  # micro-batches that each worker computes at once; empty if each computes one
    dispensable: Mapping[str, str] = field(default_factory=dict)


class Policy(ABC):
    """A way to split batches over the workers of a job.

    Batches, bounds and counts are in units: samples or, in a job with micro-batches, whole micro-batches.
    Speeds, models and messages are in samples, so that they serve jobs with other units, too.
    """

    unit = 1  # samples of a unit

    @abstractmethod
    def set_members(self, members: Sequence[Participant]) -> None:
        """Set the job's members from the next split on, in the order of their slices.

        Raises:
            InfeasibleError: They cannot take the batch that the policy is holding.
        """

    def expect(self, total: int, unit: int = 1) -> None:
        """Note the size of whole batches from now on; an epoch's last may be smaller.

        Args:
            total: Units of a whole batch.
            unit: Samples of a unit.
        """
        self.unit = unit

    @abstractmethod
    def observe(self, observations: Mapping[str, WorkerRecord]) -> None:
        """Observe a complete iteration: the records of the members that finished it, by name.

        Their batch sizes are in units. Times are those of whole units.
        """

    @abstractmethod
    def split(self, total: int) -> Split:
        """Split the next batch of `total` units.

        Raises:
            InfeasibleError: The members' maxima together are below `total`.
        """

    def seconds(self, totals: Sequence[int]) -> list[float] | None:
        """Return the seconds of batches of other sizes, each with its best split; (totals,).

        They are the longest of the workers' batch processing times; where the policy knows what an iteration
        takes beside these, with its difference from that of the present iteration. None where the policy has
        no time curves, or has measured nothing yet.

        Args:
            totals: Units of whole batches, which the members can take.
        """
        return None

    def due_fit(self) -> Fit | None:
        """Return a fit that is to be run now, in another process; see `predictors.Predictor.due_fit`."""
        return None

    def take_fit(self, weights: Weights | None) -> None:
        """Use the weights of the fit that `due_fit` returned last; None if the fit failed."""
        raise AssertionError(f"{type(self).__name__} hands out no fits")

    def models(self) -> Models:
        """Return the fitted models of the members, in their order, that later runs can start from."""
        return {}


class LastSplits(dict[int, list[int]]):
    """The counts that were given last, by total; of the totals, the latest ones are kept.

    In a job whose batches have one size there are two, of whole batches and of an epoch's last.
    """

    def __setitem__(self, total: int, counts: list[int]) -> None:
        self.pop(total, None)
        super().__setitem__(total, counts)
        while len(self) > _TOTALS:
            del self[next(iter(self))]


class PolicyWrapper(Policy):
    """The base of policies that do something besides what another policy does.

    Args:
        policy: The other policy, to which all calls are passed on.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def set_members(self, members: Sequence[Participant]) -> None:
        """Pass on `Policy.set_members`."""
        self.policy.set_members(members)

    def expect(self, total: int, unit: int = 1) -> None:
        """Pass on `Policy.expect`."""
        super().expect(total, unit)
        self.policy.expect(total, unit)

    def observe(self, observations: Mapping[str, WorkerRecord]) -> None:
        """Pass on `Policy.observe`."""
        self.policy.observe(observations)

    def split(self, total: int) -> Split:
        """Pass on `Policy.split`."""
        return self.policy.split(total)

    def seconds(self, totals: Sequence[int]) -> list[float] | None:
        """Pass on `Policy.seconds`."""
        return self.policy.seconds(totals)

    def due_fit(self) -> Fit | None:
        """Pass on `Policy.due_fit`."""
        return self.policy.due_fit()

    def take_fit(self, weights: Weights | None) -> None:
        """Pass on `Policy.take_fit`."""
        self.policy.take_fit(weights)

    def models(self) -> Models:
        """Pass on `Policy.models`."""
        return self.policy.models()

"""What policies see and give."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from idl.bounds import Bounds
from predictors import Fit, Models, Weights


@dataclass(frozen=True, slots=True)
class Participant:
    """A worker as a policy sees it.

    Attributes:
        name: Its name.
        bounds: What batch sizes it can take.
        kind: Of the device that it computes on, in words; empty where it does not say.
    """

    name: str
    bounds: Bounds
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one worker reported of one iteration.

    Attributes:
        batch_size: Samples.
        batch_processing_time: Seconds, waiting left out.
        cpu_usage: Share that others take of the CPUs that the worker may use, at the iteration's end; 0 to 1.
        memory_usage: Occupied share of the memory that the worker may use; 0 to 1.
    """

    batch_size: int
    batch_processing_time: float
    cpu_usage: float = 0.0
    memory_usage: float = 0.0

    @property
    def speed(self) -> float:
        """Samples per second; NaN where there was no sample."""
        if not self.batch_size:
            return float("nan")
        return self.batch_size / self.batch_processing_time


@dataclass(frozen=True, slots=True)
class Split:
    """A policy's answer, in the order of the members.

    Attributes:
        counts: Samples.
        warnings: What the user should know.
        predicted_speeds: Samples per second, NaN where unknown; empty if the policy does not predict.
        dispensable: By name, workers without which the job would be faster, with why and by how much in
            words. If there are several, it is so without all of them together.
    """

    counts: list[int]
    warnings: tuple[str, ...] = ()
    predicted_speeds: Sequence[float] = ()
    dispensable: Mapping[str, str] = field(default_factory=dict)


class Policy(ABC):
    """What every policy does."""

    @abstractmethod
    def set_members(self, members: Sequence[Participant]) -> None:
        """The job's members from the next split on, in the order of their slices.

        Raises:
            InfeasibleError: They cannot take the batch that the policy is holding.
        """

    def expect(self, total: int) -> None:  # noqa: B027 - most need not know
        """Whole batches have so many samples from now on; an epoch's last may be smaller."""

    @abstractmethod
    def observe(self, observations: Mapping[str, Observation]) -> None:
        """An iteration is complete; by name, what the members that finished it reported."""

    @abstractmethod
    def split(self, total: int) -> Split:
        """Split the next batch of `total` samples.

        Raises:
            InfeasibleError: The members cannot take so many.
        """

    def due_fit(self) -> Fit | None:
        """Learning that is to be done now, elsewhere; see `predictors.Predictor`."""
        return None

    def take_fit(self, weights: Weights | None) -> None:
        """What the fit handed out last has learnt, or None where it failed."""
        raise AssertionError(f"{type(self).__name__} hands out no fits")

    def models(self) -> Models:
        """What has been learnt of the members so far, in their order, worth keeping for later runs."""
        return {}


class Around(Policy):
    """Does what another policy does; the base of those that do something besides.

    Args:
        policy: The other.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def set_members(self, members: Sequence[Participant]) -> None:
        """See `Policy`."""
        self.policy.set_members(members)

    def expect(self, total: int) -> None:
        """See `Policy`."""
        self.policy.expect(total)

    def observe(self, observations: Mapping[str, Observation]) -> None:
        """See `Policy`."""
        self.policy.observe(observations)

    def split(self, total: int) -> Split:
        """See `Policy`."""
        return self.policy.split(total)

    def due_fit(self) -> Fit | None:
        """See `Policy`."""
        return self.policy.due_fit()

    def take_fit(self, weights: Weights | None) -> None:
        """See `Policy`."""
        self.policy.take_fit(weights)

    def models(self) -> Models:
        """See `Policy`."""
        return self.policy.models()

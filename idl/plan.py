"""Plans, which divide an iteration's batch among the workers. Pure values; nothing here knows the wire."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from idl.bounds import Bounds
from idl.cuts import Cuts
from idl.errors import InvalidRequestError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Scaling:
    """An iteration's batch, compared with batches of the size that the script gives, for learning rates.

    Attributes:
        gain: The progress that is to be had in the iteration, in such iterations of the script's first size:
            (tr(Σ)/M₀ + |G|²) / (tr(Σ)/M + |G|²), with sizes M and M₀ and the gradient noise (AdaScale SGD,
            Johnson et al., equation 7). Between 1 and M/M₀, and 1 for the script's size.
    """

    size: int  # samples of a whole batch; those of an epoch's last, smaller batch do not count
    gain: float
    progress: float  # the sum of the gains of all iterations before


@dataclass(frozen=True, slots=True)
class Assignment:
    """One worker's part of one iteration: positions `start` to `start + count - 1` of its epoch."""

    iteration: int  # the iteration's number, counted from 0 over the whole job
    epoch: int  # the epoch's number, counted from 0
    start: int  # first position in the epoch's permutation
    count: int  # samples; 0 is possible in an epoch's last, smaller batch
    total: int  # samples of the whole batch, over all workers
    attempt: int = 0  # number of times that the job has been rewound before
    batch_start: int | None = None  # first position of the whole batch; None if the sender left it out
    at_once: int = 1  # micro-batches that the worker is to compute at once, at least 1
    # The comparison with the script's first batch size; None if all batches have had it.
    scaling: Scaling | None = None

    @property
    def end(self) -> int:
        """Return the position after the last."""
        return self.start + self.count

    @property
    def batch_begin(self) -> int:
        """Return `batch_start`; the first position of its own where that was left out."""
        return self.start if self.batch_start is None else self.batch_start

    def continues(self, earlier: "Assignment") -> bool:
        """Return whether this is another part of an earlier assignment's iteration."""
        return (self.iteration, self.attempt) == (earlier.iteration, earlier.attempt)


@dataclass(frozen=True, slots=True)
class Plan:
    """All workers' parts of one iteration: consecutive slices of its batch of `total` samples.

    Each slice begins and ends on a cut between micro-batches.
    """

    iteration: int
    epoch: int
    start: int
    total: int
    assignments: Mapping[str, Assignment]  # by worker's name, in the order of the slices
    attempt: int = 0  # how often the job has been rewound before
    unit: int = 1  # samples, as `JobSpec.unit`

    @property
    def cuts(self) -> Cuts:
        """Return the cuts between the batch's micro-batches."""
        return Cuts(self.total, self.unit)


def make_plan(
    iteration: int,
    epoch: int,
    start: int,
    counts: Mapping[str, int],
    attempt: int = 0,
    unit: int = 1,
    at_once: Mapping[str, int] | None = None,
    scaling: Scaling | None = None,
) -> Plan:
    """Make a plan of consecutive slices.

    Args:
        iteration: The iteration's number.
        start: The first slice's first position in the epoch's permutation.
        counts: Samples by worker's name, in the order of the slices.
        attempt: Number of times that the job has been rewound before.
        unit: Samples of a micro-batch; 1 in a job without.
        at_once: Micro-batches that a worker computes at once, by name; 1 where it is left out.
        scaling: The comparison with the script's first batch size.
    """
    total = sum(counts.values())
    assignments = {}
    position = start
    for name, count in counts.items():
        together = 1 if at_once is None else at_once.get(name, 1)
        assignments[name] = Assignment(
            iteration, epoch, position, count, total, attempt, start, together, scaling
        )
        position += count
    return Plan(iteration, epoch, start, total, assignments, attempt, unit)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The data that a job trains on, and its order; the same for every worker of the job.

    Attributes:
        micro_batch: Samples that are computed together, on whichever worker: slices are of whole
            micro-batches. None for a job without, whose workers compute each slice as a whole.
        milestones: Other sizes of a whole batch that the script asks for: (epoch, samples) from that epoch
            on, ascending by epoch, from 1.
        samples: Pairs of numbers of a few samples, by which data sets are compared, and no part of what the
            job is; empty where they are not known.
        weight_limit: The most that a sample may weigh where sums are exact, in a job whose gradients are
            means over something else than samples, such as tokens. None: each sample weighs 1.
        total_cost: Sum of `idl.costs.scaled_costs` over the data set, in a job whose batches are split by
            what samples cost. None: by samples.
        sorted_by: Digest of the costs, in a job whose workers sort each batch by these, and pad parts of it.
            None: batches are not sorted.

    Raises:
        ValueError: A number is out of its range.
    """

    dataset_size: int  # samples of the data set
    total_batch_size: int  # samples of a whole batch, over all workers
    seed: int = 0  # the permutations' seed
    # True if each epoch has a permutation of its own; if not, samples are taken in order.
    shuffle: bool = True
    drop_last: bool = False  # true if an epoch's last, smaller batch is left out
    micro_batch: int | None = None
    milestones: tuple[tuple[int, int], ...] = ()
    samples: tuple[tuple[float, ...], ...] = field(default=(), compare=False)
    weight_limit: int | None = None
    total_cost: int | None = None
    sorted_by: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.dataset_size < 2**48:
            raise ValueError(f"dataset_size {self.dataset_size}: must be from 1 to 2^48 - 1")
        if not 1 <= self.total_batch_size <= self.dataset_size:
            raise ValueError(
                f"total_batch_size {self.total_batch_size}: must be from 1 to "
                f"the dataset's size, {self.dataset_size}"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed {self.seed}: must be from 0 to 2^63 - 1")
        if self.micro_batch is not None and not 1 <= self.micro_batch <= self.total_batch_size:
            raise ValueError(
                f"micro_batch {self.micro_batch}: must be from 1 to the total batch size, "
                f"{self.total_batch_size}"
            )
        if self.weight_limit is not None and not 1 <= self.weight_limit <= 2**30:
            raise ValueError(f"weight_limit {self.weight_limit}: must be from 1 to 2^30")
        if (
            self.total_cost is not None
            and not self.dataset_size <= self.total_cost < 2**32 * self.dataset_size
        ):
            raise ValueError(f"total_cost {self.total_cost}: must be from 1 to 2^32 - 1 for each sample")
        if self.sorted_by is not None and self.total_cost is None:
            raise ValueError("sort=True: give the cost of each sample, which batches are sorted by")
        last = 0
        for epoch, size in self.milestones:
            if not last < epoch < 2**48:
                raise ValueError(
                    f"milestones: epoch {epoch} must be above {last}, the one before, and below 2^48"
                )
            if not self.unit <= size <= self.dataset_size:
                raise ValueError(
                    f"milestones: size {size} from epoch {epoch} on must be from {self.unit} to "
                    f"the dataset's size, {self.dataset_size}"
                )
            last = epoch

    @classmethod
    def of(
        cls,
        dataset_size: int,
        batch_size: int | Mapping[int, int],
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        micro_batch: int | None = None,
        weight_limit: int | None = None,
        total_cost: int | None = None,
        sorted_by: str | None = None,
    ) -> "JobSpec":
        """Return the spec of a script that gives one batch size, or sizes by the first epoch that has them.

        Raises:
            ValueError: A number is out of its range, or there is no size for epoch 0.
        """
        sizes = sorted(batch_size.items()) if isinstance(batch_size, Mapping) else [(0, batch_size)]
        if not sizes or sizes[0][0] != 0:
            raise ValueError(f"batch_size {batch_size}: must have a size for epoch 0")
        changes = [now for before, now in pairwise(sizes) if now[1] != before[1]]
        return cls(
            dataset_size,
            sizes[0][1],
            seed,
            shuffle,
            drop_last,
            micro_batch,
            tuple(changes),
            weight_limit=weight_limit,
            total_cost=total_cost,
            sorted_by=sorted_by,
        )

    def differences(self, other: "JobSpec") -> str:
        """Return the fields in which this spec differs from another, with this one's values, in words."""
        names = [one.name for one in fields(self) if one.compare]
        others = [name for name in names if getattr(self, name) != getattr(other, name)]
        return ", ".join(f"{name} {getattr(self, name)}" for name in others)

    def has_samples_of(self, other: "JobSpec") -> bool:
        """Return whether the samples of another spec are these, as far as both are known."""
        return all(
            not ours or not theirs or _are_close(ours, theirs)
            for ours, theirs in zip(self.samples, other.samples, strict=False)
        )

    @property
    def unit(self) -> int:
        """Return the samples of the units that batches are split into: a micro-batch; without, a sample."""
        return self.micro_batch or 1

    @property
    def mean_cost(self) -> float | None:
        """Return the mean cost of a sample, as `total_cost`; None in a job without costs."""
        return None if self.total_cost is None else self.total_cost / self.dataset_size

    @property
    def iterations_per_epoch(self) -> int:
        """Return the number of batches of an epoch."""
        whole, rest = divmod(self.dataset_size, self.total_batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def cuts(self, total: int) -> Cuts:
        """Return the cuts of a batch of `total` samples; without micro-batches, it may be cut anywhere."""
        return Cuts(total, self.unit)

    def narrowed(self, bounds: Bounds) -> Bounds:
        """Return a worker's bounds in whole micro-batches; unchanged in a job without micro-batches.

        Who may take the whole batch of the script's size may take all of its micro-batches, of which the last
        ones may be smaller than others.

        Raises:
            InvalidRequestError: The worker cannot take a single micro-batch; or it would compute several at
                once, in a job without micro-batches.
        """
        size = self.micro_batch
        if size is None:
            if bounds.at_once > 1:
                raise InvalidRequestError(
                    f"at_once {bounds.at_once}: must be 1 in a job without micro-batches; "
                    f"make its loaders with micro_batch="
                )
            return bounds
        if bounds.maximum < size:
            raise InvalidRequestError(
                f"maximum batch size {bounds.maximum}: must be at least a micro-batch, {size} samples"
            )
        maximum = bounds.maximum // size * size
        if bounds.maximum >= self.total_batch_size:
            maximum = max(maximum, self.cuts(self.total_batch_size).padded)
        return Bounds(min(-(-bounds.minimum // size) * size, maximum), maximum, size, bounds.at_once)

    def batch(self, iteration: int) -> tuple[int, int, int]:
        """Return an iteration's epoch, its batch's first position there, and its batch's size in samples."""
        epoch, index = divmod(iteration, self.iterations_per_epoch)
        start = index * self.total_batch_size
        return epoch, start, min(self.total_batch_size, self.dataset_size - start)


def _are_close(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether pairs of numbers differ by no more than devices do that compute the same samples."""
    if len(ours) != len(theirs) or len(ours) % 2:
        return False
    own, other = (np.reshape(numbers, (-1, 2)) for numbers in (ours, theirs))  # (leaves, 2)
    scale = np.maximum(np.abs(own), np.abs(other)).max(axis=1, keepdims=True)
    return bool(np.all(np.abs(own - other) <= 1e-3 * scale))


@dataclass(frozen=True, slots=True)
class Resume:
    """The point from which a saved job continues.

    Attributes:
        position: Epoch and first position of that iteration's batch; None if all batches have had the size of
            `JobSpec`, so that they follow from the iteration.
    """

    iteration: int = 0  # the first iteration that has not been trained
    position: tuple[int, int] | None = None
    total_batch_size: int | None = None  # samples of a whole batch from there on; None for that of `JobSpec`
    progress: float | None = None  # `Scaling.progress` at that iteration; None if it is the iteration


def permutation(spec: JobSpec, epoch: int) -> NDArray[np.int64]:
    """Return the order of an epoch's samples: (dataset_size,) indices into the data set.

    It depends on the seed, the epoch and the data set's size alone. `idl/batchsize_manager.thrift`
    defines it for other languages.
    """
    indices = np.arange(spec.dataset_size, dtype=np.int64)
    if not spec.shuffle:
        return indices
    with np.errstate(over="ignore"):
        base = _mix(_mix(np.uint64(spec.seed) + _GOLDEN) + np.uint64(epoch) + _GOLDEN)
        keys = _mix(base + (indices.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return np.argsort(keys, kind="stable")


def _mix(z: np.uint64 | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64 bits one to one, as SplitMix64's finaliser (Steele et al., OOPSLA 2014)."""
    z = np.asarray(z, dtype=np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))

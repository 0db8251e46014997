"""The even split of plain BSP: the same number of samples for all workers, as far as bounds allow."""

from collections.abc import Mapping, Sequence

from batchsize_manager.policies.base import Participant, Policy, Split
from batchsize_manager.policies.solver import split
from idl.records import WorkerRecord


class Even(Policy):
    """An even split, the baseline that balancing is compared with."""

    def __init__(self) -> None:
        self._members: Sequence[Participant] = ()

    def set_members(self, members: Sequence[Participant]) -> None:
        """Set the members; see `Policy.set_members`."""
        self._members = members

    def observe(self, observations: Mapping[str, WorkerRecord]) -> None:
        """Do nothing: no report changes an even split."""

    def split(self, total: int) -> Split:
        """Split the next batch evenly; see `Policy.split`."""
        bounds = [member.bounds for member in self._members]
        return Split(split([1.0] * len(bounds), total, bounds))

"""Plain BSP: everybody gets the same, as far as bounds allow."""

from collections.abc import Mapping, Sequence

from batchsize_manager.policies.base import Observation, Participant, Policy, Split
from batchsize_manager.policies.solver import split


class Even(Policy):
    """The baseline that balancing is measured against."""

    def __init__(self) -> None:
        self._members: Sequence[Participant] = ()

    def set_members(self, members: Sequence[Participant]) -> None:
        """See `Policy`."""
        self._members = members

    def observe(self, observations: Mapping[str, Observation]) -> None:
        """Nothing that workers report changes an even split."""

    def split(self, total: int) -> Split:
        """See `Policy`."""
        bounds = [member.bounds for member in self._members]
        return Split(split([1.0] * len(bounds), total, bounds))

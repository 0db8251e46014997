"""Synchronisation modes of a job's workers: a value that manager, parameter server and workers share.

`batchsize_manager.job` enforces a mode for the plans, and `ps` for the gradients.
"""

from dataclasses import dataclass

MODES = ("bsp", "ssp", "asp", "backup")


@dataclass(frozen=True)
class Synchronisation:
    """One of the synchronisation schemes that LB-BSP compares (sections 2.2 and 5.3).

    Attributes:
        mode: "bsp": an iteration is one step with all workers' gradients. "ssp" (Ho et al., 2013) and "asp"
            (Dean et al., 2012): each worker's gradient is a step of its own. "backup" (redundant execution;
            Chen et al., 2016): an iteration is one step with the gradients that arrive first.
        staleness: In ssp, iterations by which the fastest worker may be ahead of the slowest one's current
            iteration; at least 0, with which all begin each iteration together. None in the other modes.
        replicas_to_aggregate: In backup, the number of gradients that make a step; at least 1. None in the
            others.

    Raises:
        ValueError: A value is out of its range, missing, or does not belong to the mode.
    """

    mode: str = "bsp"
    staleness: int | None = None
    replicas_to_aggregate: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"synchronisation {self.mode!r}: there are {', '.join(MODES)}")
        for name, owner, low in (("staleness", "ssp", 0), ("replicas_to_aggregate", "backup", 1)):
            value = getattr(self, name)
            if self.mode == owner and (value is None or value < low):
                raise ValueError(f"{name} {value}: {owner} needs a number of at least {low}")
            if self.mode != owner and value is not None:
                raise ValueError(f"{name} {value}: belongs to {owner}, but the mode is {self.mode}")

    @property
    def asynchronous(self) -> bool:
        """Return whether each worker's gradient is a step of its own, so that no step waits for others."""
        return self.mode in ("ssp", "asp")

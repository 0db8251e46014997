"""How the workers of a job wait for each other: a value that manager, parameter server and workers share.

It says what is to hold; how it is kept is in `job`, for the plans, and in `ps`, for the gradients.
"""

from dataclasses import dataclass

MODES = ("bsp", "ssp", "asp", "backup")


@dataclass(frozen=True)
class Synchronisation:
    """One of the schemes that LB-BSP compares (sections 2.2 and 5.3).

    Attributes:
        mode: "bsp": an iteration is one step with everybody's gradient. "ssp" (Ho et al., 2013) and "asp"
            (Dean et al., 2012): each worker's gradient is a step of its own. "backup" (redundant execution;
            Chen et al., 2016): an iteration is one step with the gradients that come first.
        staleness: In ssp, how many iterations beyond the slowest worker's current one the fastest may work
            on; at least 0, where all begin each iteration together. None in the other modes.
        replicas_to_aggregate: In backup, how many gradients make a step; at least 1. None in the others.

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
        """Whether each worker's gradient is a step of its own, so that no step waits for anybody."""
        return self.mode in ("ssp", "asp")

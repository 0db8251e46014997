"""Synchronisation modes of a job's workers: a value that manager, parameter server and workers share.

`batchsize_manager.job` enforces a mode for the plans, and `ps` for the gradients.
"""

from dataclasses import dataclass
from typing import Annotated

from idl.settings import Setting, check_settings, settings_of

MODES = ("bsp", "ssp", "asp", "backup")
STALENESS = 5  # LB-BSP, sections 5.1 and 5.3


@dataclass(frozen=True)
class Synchronisation:
    """One of the synchronisation schemes that LB-BSP compares (sections 2.2 and 5.3).

    Attributes:
        mode: In "bsp", an iteration is one step with everybody's gradient. In "ssp" (Ho et al., 2013) and
            "asp" (Dean et al., 2012), each worker's gradient is a step of its own. In "backup" (redundant
            execution; Chen et al., 2016), an iteration is one step with the gradients that come first.
        staleness: In ssp, the iterations that a worker may be ahead of the slowest worker's current one; with
            0, all begin each iteration together. None in the other modes.
        exact: Whether the gradient of an iteration is summed in fixed point, micro-batch by micro-batch
            (`exact_sums`), so that it is the same to the last bit, whichever worker computes them.

    Raises:
        ValueError: A value is out of its range, missing, or does not belong to the mode.
    """

    mode: Annotated[
        str,
        Setting(
            "How workers wait for each other: all of them in each iteration (bsp), within a bound (ssp), "
            "never (asp), or for those that are first (backup).",
            name="sync",
            choices=MODES,
        ),
    ] = "bsp"
    staleness: Annotated[
        int | None,
        Setting(
            f"With ssp: iterations that the fastest may be ahead of the slowest.  [default: {STALENESS}]",
            least=0,
        ),
    ] = None
    # In backup, the number of gradients of a step. None in the other modes.
    replicas_to_aggregate: Annotated[
        int | None,
        Setting("With backup: gradients that make a step; the other workers are the backup.", least=1),
    ] = None
    exact: Annotated[
        bool,
        Setting(
            "With bsp and micro-batches: sum gradients in fixed point, for the same bits with any workers."
        ),
    ] = False

    def __post_init__(self) -> None:
        check_settings(self)
        for name, owner in (("staleness", "ssp"), ("replicas_to_aggregate", "backup")):
            value = getattr(self, name)
            if self.mode == owner and value is None:
                least = settings_of(Synchronisation)[name].least
                raise ValueError(f"{name} {value}: {owner} needs a number of at least {least}")
            if self.mode != owner and value is not None:
                raise ValueError(f"{name} {value}: belongs to {owner}, but the mode is {self.mode}")
        if self.exact and self.mode != "bsp":
            raise ValueError(f"exact {self.exact}: belongs to bsp, but the mode is {self.mode}")

    @property
    def is_asynchronous(self) -> bool:
        """Return whether each worker's gradient is a step of its own, so that no step waits for others."""
        return self.mode in ("ssp", "asp")

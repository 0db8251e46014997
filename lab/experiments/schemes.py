"""Schemes that are compared: LB-BSP, and those that its paper compares it with (sections 2.2 and 5.3)."""

from dataclasses import dataclass

from predictors import PREDICTORS


@dataclass(frozen=True)
class Scheme:
    """One way to run a training job."""

    name: str  # name for the command line and the tables
    policy: str = "even"  # policy of the manager
    predictor: str | None = None  # predictor of the manager; None where it does not matter
    sync: str = "bsp"  # synchronisation mode, of `idl.synchronisation`
    staleness: int | None = None  # bound of staleness in the mode ssp
    backup_workers: int = 0  # workers beyond those whose gradients make a step
    one_by_one: bool = False  # whether workers take their samples one at a time, as FlexRR must
    stealing: bool = False  # whether workers take samples over from each other within an iteration (FlexRR)

    @property
    def synchronous(self) -> bool:
        """Return whether each update is made from gradients of the same parameters."""
        return self.sync in ("bsp", "backup")

    @property
    def baseline(self) -> str:
        """Return the scheme that normalises its times: BSP in the same style of computing."""
        return "bsp-one-by-one" if self.one_by_one else "bsp"


_BASELINES = (
    Scheme("bsp"),
    Scheme("asp", sync="asp"),
    Scheme("ssp", sync="ssp", staleness=5),
    Scheme("redundant", sync="backup", backup_workers=1),
    Scheme("bsp-one-by-one", one_by_one=True),
    Scheme("flexrr", one_by_one=True, stealing=True),
)

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (*_BASELINES, *(Scheme(f"lb-bsp:{name}", "proportional", name) for name in PREDICTORS))
}


def choose_schemes(names: str) -> list[Scheme]:
    """Return the schemes of a list of names, separated by commas; each one's baseline comes before it."""
    chosen: dict[str, Scheme] = {}
    for name in (part.strip() for part in names.split(",")):
        if name not in SCHEMES:
            raise ValueError(f"no scheme {name!r}; there are {', '.join(SCHEMES)}")
        scheme = SCHEMES[name]
        for needed in (SCHEMES[scheme.baseline], scheme):
            chosen.setdefault(needed.name, needed)
    return list(chosen.values())

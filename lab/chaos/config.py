"""The configuration of a run under faults: a value that checks itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

from batchsize_manager.sizers import MEASURING, SIZERS
from idl.exchange import ExchangeName
from idl.settings import Setting, check_settings
from lab.chaos.fault_schedule import KINDS, kinds_with
from lab.fields import parse_names

_TAKE_WORKERS_OUT = {"freeze-until-out"}
_ORDERS = {name for name, kind in KINDS.items() if kind.site == "operator"}
_BEFALL_SHARDS = {name for name, kind in KINDS.items() if "shard" in (kind.roles or ())}
_ONLY_WITH = {
    exchange: ", ".join(name for name, kind in KINDS.items() if kind.only_with == exchange)
    for exchange in get_args(ExchangeName)
}
_OTHER_BITS = "other bits are to be expected; leave out what does so with --deterministic and --exact"


@dataclass(frozen=True)
class ChaosConfig:
    """One run (ValueError: a value is not allowed)."""

    minutes: Annotated[float, Setting("For which faults come.", above=0)] = 2.0
    seed: Annotated[int, Setting("Of the faults.", least=0)] = 0
    # Those that come, by their names in `KINDS`; None for all that can be brought about here.
    kinds: Annotated[
        Sequence[str] | None,
        Setting(
            f"Kinds that come, each of which must fire: {', '.join(KINDS)}; "
            f"{'; '.join(f'{names} only with {exchange}' for exchange, names in _ONLY_WITH.items())}.  "
            "[default: all that can here]",
            name="faults",
            metavar="KIND,...",
            read=parse_names,
        ),
    ] = None
    workers: Annotated[int, Setting("Of each job.", least=1, most=32)] = 5
    shards: Annotated[int, Setting("Of the parameter server.", least=1, most=8)] = 2
    exchange: Annotated[ExchangeName, Setting("How the workers' gradients meet.", name="with")] = (
        "parameter-server"
    )
    link_mib: Annotated[
        float,
        Setting(
            "MiB per second that each of a worker's connections to services carries, either way. A push is "
            "of 0.3 MiB, shared among the shards, and so is a pull.",
            above=0,
        ),
    ] = 3.0
    lookahead: Annotated[int, Setting("See `evenpace manager`.", least=0)] = 0
    jobs: Annotated[int, Setting("That train at once.", least=1, most=8)] = 1
    sizer: Annotated[
        str,
        Setting(
            "How the batch's size is chosen, as in `evenpace manager`; with schedule, it changes with every "
            "epoch.",
            choices=tuple(SIZERS),
        ),
    ] = "fixed"
    scale_batch: Annotated[
        bool,
        Setting("Let the batch follow the number of workers, as in `evenpace manager`."),
    ] = False
    deterministic: Annotated[
        bool,
        Setting(
            "Let faults befall the manager and the links to shards only: the final parameters must have the "
            "bits of a run without faults, which follows."
        ),
    ] = False
    exact: Annotated[
        bool,
        Setting(
            "Let jobs sum exactly, in micro-batches: whatever faults come, the final parameters must have "
            "the bits of a run without faults, which follows."
        ),
    ] = False
    gap: float = 4.0  # seconds between two moments at which faults come, on average
    pause: float = 0.02  # seconds that each iteration of a worker takes longer, as if it computed more
    checkpoint_every: int = 20  # versions between two checkpoints of a shard

    def __post_init__(self) -> None:
        check_settings(self)
        if unknown := sorted(set(self.wanted) - set(KINDS)):
            raise ValueError(f"faults {', '.join(unknown)}: there are {', '.join(KINDS)}")
        if not self.wanted:
            raise ValueError(f"faults: give at least one of {', '.join(KINDS)}")
        if wrong := [kind for kind in self.wanted if kind not in kinds_with(self.exchange)]:
            raise ValueError(f"faults {', '.join(wrong)}: do not come with {self.exchange}")
        for why in self._contradictions():
            raise ValueError(why)

    def _contradictions(self) -> Iterator[str]:
        """Yield in words what settings do not go together."""
        all_reduce = self.exchange == "all-reduce"
        if all_reduce and self.jobs > 1:
            yield f"jobs {self.jobs}: with all-reduce, one job trains at a time"
        if all_reduce and self.deterministic:
            yield (
                "deterministic: has no meaning with all-reduce, whose sums depend on the workers that are "
                "there; with exact they do not"
            )
        if self.deterministic and self.exact:
            yield "deterministic and exact: give one of them; with exact, all faults may come"
        if self.same_bits and self.sizer in MEASURING:
            yield f"sizer {self.sizer}: goes by what is measured, so that {_OTHER_BITS}"
        if self.scale_batch and self.same_bits:
            yield f"scale_batch: workers that come and go change batches, after which {_OTHER_BITS}"
        if self.scale_batch and self.sizer != "fixed":
            yield f"scale_batch: comes with sizer fixed, but {self.sizer} chooses the size"
        for kinds, why in self._left_out:
            if wrong := sorted(kinds & set(self.wanted)):
                yield f"faults {', '.join(wrong)}: {why}"

    @property
    def wanted(self) -> tuple[str, ...]:
        """Return the kinds that come if they can be caused on this machine."""
        if self.kinds is not None:
            return tuple(self.kinds)
        left_out: set[str] = set().union(*(kinds for kinds, _ in self._left_out))
        return tuple(kind for kind in kinds_with(self.exchange) if kind not in left_out)

    @property
    def _left_out(self) -> Iterator[tuple[set[str], str]]:
        """Yield kinds that other settings rule out, and why."""
        if self.deterministic:
            yield _TAKE_WORKERS_OUT, f"take workers out, after which {_OTHER_BITS}"
            but = "with deterministic, faults befall the manager and the links to shards"
            yield _BEFALL_SHARDS, f"befall shards; {but}"
        if self.same_bits:
            yield _ORDERS, f"change batches, after which {_OTHER_BITS}"
        if self.sizer != "fixed":
            yield {"batch-size"}, f"come with sizer fixed, but {self.sizer} chooses the size"

    @property
    def same_bits(self) -> bool:
        """Return whether the final parameters must have the bits of a run without faults."""
        return self.deterministic or self.exact

    @property
    def sizes_change(self) -> bool:
        """Return whether the batch's size may differ from one attempt to the next."""
        return self.sizer in MEASURING or "batch-size" in self.wanted or self.scale_batch

    @property
    def command(self) -> str:
        """Return the command line that gives the same faults again."""
        faults = "" if self.kinds is None else f"--faults {','.join(self.kinds)} "
        others = {"link-mib": self.link_mib, "lookahead": self.lookahead, "jobs": self.jobs}
        by_shards = self.exchange == "parameter-server"
        exchange = f"--shards {self.shards}" if by_shards else f"--with {self.exchange}"
        sizer = "" if self.sizer == "fixed" else f" --sizer {self.sizer}"
        return (
            f"evenpace lab chaos --minutes {self.minutes:g} --seed {self.seed} {faults}"
            f"--workers {self.workers} {exchange}"
            + "".join(f" --{name} {value:g}" for name, value in others.items() if value != _DEFAULTS[name])
            + sizer
            + " --scale-batch" * self.scale_batch
            + " --deterministic" * self.deterministic
            + " --exact" * self.exact
        )


_DEFAULTS = {"link-mib": ChaosConfig.link_mib, "lookahead": ChaosConfig.lookahead, "jobs": ChaosConfig.jobs}

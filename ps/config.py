"""The configuration of a shard process: a value that checks itself. It needs no PyTorch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from idl.settings import Setting, check_settings


@dataclass(frozen=True)
class ParameterServerConfig:
    """The configuration of a shard process.

    Attributes:
        deterministic: Gradients are summed in the order of their slices; see `ps.shard.Shard`. Only for jobs
            that run with BSP.
        whole_steps: Workers pull no parameters before a step is complete, and a job has the parameters and
            the optimiser's state once, not twice.
        memory_bytes: Counts parameters, sums of gradients and the optimiser's state, with what partial steps
            hold, and state that waits for its parameters. Gradients that are held one by one come on top.

    Raises:
        ValueError: A number is out of its range, or there is a ledger without a folder for checkpoints.
    """

    deterministic: Annotated[
        bool,
        Setting("Sum gradients in a fixed order: runs with the same splits are the same to the last bit."),
    ] = False
    whole_steps: Annotated[
        bool,
        Setting(
            "Take each step once all gradients are here, not range by range as they arrive: slower for large "
            "models, but with Adam in 4 times the memory of the parameters instead of 7 times."
        ),
    ] = False
    memory_bytes: Annotated[
        int,
        Setting(
            "MiB for parameters, sums of gradients and optimisers' states, at most, over all jobs.",
            name="memory-mib",
            least=1,
            unit=2**20,
        ),
    ] = 16 * 2**30
    state: Annotated[
        Path | None,
        Setting(
            "Keep checkpoints in this folder, and resume from them: jobs in mode bsp outlive the shard. "
            "Each shard needs a folder of its own.",
            folder=True,
        ),
    ] = None
    jobs: Annotated[
        int,
        Setting(
            "Most jobs at once; more are refused, once none is left that has no connection.",
            name="max-jobs",
            least=1,
        ),
    ] = 100
    # An iteration makes a version of the parameters.
    checkpoint_every: Annotated[int, Setting("Iterations from one checkpoint to the next.", least=1)] = 100
    keep: Annotated[
        float,
        Setting("Seconds after which a job without connections is removed from the folder.", above=0),
    ] = 86_400.0
    ledger: Annotated[
        Path | None,
        Setting("With --state: record every step of each job in this folder.", folder=True),
    ] = None

    def __post_init__(self) -> None:
        check_settings(self)
        if self.ledger is not None and self.state is None:
            raise ValueError(
                f"ledger {str(self.ledger)!r}: records checkpoints, too; give a folder for these as state"
            )

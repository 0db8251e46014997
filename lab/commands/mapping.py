"""`evenpace lab experiment mapping`."""

import click

from evenpace.cli.options import example, user_mistakes
from evenpace.cli.settings import configured
from lab.commands.options import by_workload
from lab.experiments.config import MappingConfig

_WORKLOADS = ("resnet32", "transformer", "digits")


@click.command("mapping")
@example("evenpace lab experiment mapping --workloads resnet32 --data resnet32=cifar10:DIR --mappings 1,4")
@click.option("--workloads", default="resnet32,transformer", show_default=True, metavar="NAME,...")
@configured(MappingConfig, "config", out="runs/mapping")
@click.option(
    "--data",
    multiple=True,
    metavar="[NAME=]SPEC",
    help="What a workload trains on, as its script's --data has it.  [default: generated; Python's own text]",
)
@click.option("--again", is_flag=True, help="Train also what has been trained with the same options.")
def mapping(workloads: str, config: MappingConfig, data: tuple[str, ...], again: bool) -> None:
    """Tables 1 and 2 of VirtualFlow: the same training on any mapping of its micro-batches onto workers.

    Each workload is trained with batch normalisation, dropout and random crops, on 1 to 8 workers with even,
    uneven and changing parts, and while workers join, leave and are killed; with a parameter server and with
    all-reduce. What each training ends with is compared with plain PyTorch in one process.

    A training of which --out has the outcome with the same options is not run again: whoever stops this with
    Ctrl-C goes on later where it was.
    """
    from rich.console import Console

    from lab.experiments.mapping import run

    names = list(dict.fromkeys(workloads.split(",")))
    with user_mistakes():
        for name in names:
            if name not in _WORKLOADS:
                raise ValueError(f"no workload {name!r}; there are {', '.join(_WORKLOADS)}")
        run(names, by_workload("data", data, names, str), config, Console(), again)
    click.echo(f"Figures, plot and logs: {config.out}")

"""`evenpace lab`: measurements, experiments and tests of evenpace itself.

A command is a module. Its docstring is the help, with an example at its end; its function
`run(config, console)` does the work, prints what people read, and returns figures. The class of `config`, a
dataclass that stands beside it, has the options (`idl.settings`). Figures go to the file of `--json`, with
other load of the machine before and after; a function with a third parameter, `json_path`, is given its path,
for figures so far of a run that takes long, or for what lies beside them. The status is 1 where there is a
`failure` among the figures, its reason in words.

A command that does not fit, a click command, is named by MODULE:VARIABLE.
"""

import ast
import importlib
import importlib.util
import inspect
import os
from pathlib import Path
from typing import Any, get_type_hints

import click

from evenpace.cli.options import json_path, user_mistakes
from evenpace.cli.sections import LazyGroup
from evenpace.cli.settings import configured


class _Modules(LazyGroup):
    """Command group whose commands are modules; its list of them reads no more than their docstrings."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._modules.get(cmd_name, ":")
        return super().get_command(ctx, cmd_name) if ":" in place else _command(cmd_name, place)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, each with the first sentence of its help."""
        width = formatter.width - 6 - max(map(len, self._modules))
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self._short_help(ctx, name, place, width)) for name, place in self._modules.items()]
            )

    def _short_help(self, ctx: click.Context, name: str, place: str, width: int) -> str:
        if ":" not in place:
            return click.Command(name, help=_docstring(place)).get_short_help_str(width)
        command = self.get_command(ctx, name)
        return command.get_short_help_str(width) if command else ""


def _docstring(module: str) -> str:
    """Return a module's docstring, without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module {module}", name=module)
    return ast.get_docstring(ast.parse(Path(spec.origin).read_bytes())) or ""


def _command(name: str, place: str) -> click.Command:
    run = importlib.import_module(place).run
    takes_path = "json_path" in inspect.signature(run).parameters

    @click.command(name, help=_help(_docstring(place)))
    @configured(get_type_hints(run)["config"], "config")
    @json_path
    def command(config: Any, json_path: Path | None) -> None:
        from rich.console import Console

        from evenpace.reports.files import check_room, write_json

        console, before = Console(), os.getloadavg()[0]
        with user_mistakes():
            if json_path is not None:
                check_room(json_path)
            figures = run(config, console, *((json_path,) if takes_path else ()))
            after = os.getloadavg()[0]
            if json_path is not None:
                write_json({**figures, "load_average": [before, after]}, json_path)
        console.print(f"load average {before:.1f} before, {after:.1f} after, on {os.cpu_count()} CPUs")
        if failure := figures.get("failure"):
            raise click.ClickException(failure)

    return command


def _help(docstring: str) -> str:
    """Return a module's docstring as a command's help, in which examples keep their lines."""
    return docstring.replace("\nExample:\n", "\n\b\nExample:\n")


_BENCH = {
    "rpc": "lab.bench.barrier_rounds",
    "ps": "lab.bench.transfers",
    "shards": "lab.bench.sharded_transfers",
    "overlap": "lab.bench.overlap",
    "recovery": "lab.bench.recovery",
    "groups": "lab.bench.group_changes",
    "sizes": "lab.bench.size_changes",
    "sizers": "lab.bench.sizer_times",
    "nodes": "lab.bench.node_losses",
    "spot": "lab.bench.spot_market",
    "predictors": "lab.bench.predictor_errors",
    "micro-batches": "lab.bench.micro_batches",
    "train": "lab.bench.against_ddp",
    "balance": "lab.bench.balance",
    "solver": "lab.bench.solver_times",
    "noise": "lab.bench.noise_cost",
    "load": "lab.bench.load_benchmark",
    "hostile": "lab.attacks.attack",
}
_EXPERIMENT = {
    "contention": "lab.experiments.comparison",
    "table3": "lab.experiments.table3",
    "fig6": "lab.experiments.coordination",
    "fig8": "lab.experiments.migration",
    "fig9": "lab.experiments.fig9",
    "fig10": "lab.experiments.fig10",
    "fig11": "lab.experiments.overhead",
    "paper": "lab.experiments.paper_figures",
    "virtualflow": "lab.experiments.virtualflow",
    "mapping": "lab.experiments.mapping",
    "noise": "lab.experiments.noise",
    "batch-sizes": "lab.experiments.batch_sizes",
    "forecast": "lab.experiments.forecasts",
    "sizers": "lab.experiments.sizers",
    "elasticity": "lab.experiments.elasticity",
    "sharing": "lab.experiments.sharing",
    "autoscaling": "lab.experiments.autoscaling",
    "epoch-scaling": "lab.experiments.epoch_scaling",
}


_TRACE = {
    "usage": "lab.trace_usage",
    "contention": "lab.trace_contention",
    "live": "lab.trace_live:trace_live",
}


@click.group("bench", cls=_Modules, modules=_BENCH)
def benchmarks() -> None:
    """Measure evenpace on this machine."""


@click.group("experiment", cls=_Modules, modules=_EXPERIMENT)
def experiments() -> None:
    """Train under contention, and compare schemes; the paper's table and figures on this machine."""


@click.group("trace", cls=_Modules, modules=_TRACE)
def traces() -> None:
    """Make traces of workers' speeds, as CSV files with a row for each worker and iteration.

    The columns are worker, iteration, speed (samples/s), cpu and memory (usage from 0 to 1 as the iteration
    begins), and expected (the best possible prediction) in traces that are made up.
    """


@click.group(
    cls=_Modules,
    modules={
        "bench": "lab.commands:benchmarks",
        "experiment": "lab.commands:experiments",
        "simulate": "lab.commands.simulate:simulate",
        "trace": "lab.commands:traces",
        "chaos": "lab.commands.chaos:chaos",
    },
)
def lab() -> None:
    """Measure evenpace, compare it, simulate clusters, and test it by faults."""

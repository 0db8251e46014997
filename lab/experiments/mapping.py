"""Tables 1 and 2 of VirtualFlow: the same training on any mapping of its micro-batches onto workers.

Each workload is trained with batch normalisation, dropout and random crops, on 1 to 8 workers with even,
uneven and changing parts, and while workers join, leave and are killed; with a parameter server and with
all-reduce, by real processes. What each training ends with is compared with plain PyTorch in one process:
wherever the micro-batches of a batch are computed, the parameters must be the same (section 6.2).

A training of which --out has the outcome with the same options is not run again: whoever stops this with
Ctrl-C goes on later where it was.

Example:
  evenpace lab experiment mapping --workloads resnet32 --data resnet32=cifar10:DIR --mappings 1,4
"""

import contextlib
import io
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from rich.console import Console
from rich.progress import Progress

from batchsize_manager.client import ManagerClient
from evenpace.local.cluster import LOOPBACK, LocalCluster, Surroundings, free_ports
from evenpace.local.terminal import make_progress, make_table
from evenpace.reports import files
from idl.bounds import Bounds
from idl.errors import InvalidRequestError, UnavailableError
from idl.settings import Setting, check_settings
from lab.experiments import plots
from lab.experiments.mapping_reference import state_vector, train_alone
from lab.experiments.mappings import MAPPINGS, VIRTUALFLOW, Event, Mapping
from lab.experiments.scheme_run import RunTooShortError, followed
from lab.fields import Folder, Seed, parse_names
from lab.observer import Observer
from lab.plots import save
from lab.report import Columns, options_of, table_of
from lab.workloads.by_name import Training, by_workload
from lab.workloads.common import Workload, evaluate
from rpc.processes import Process

_SCRIPT = Path(__file__).with_name("train_workload.py")
_MICRO_BATCH = 4  # samples
_POLL_SECONDS = 0.02  # seconds between two looks at the job
_PATIENCE_SECONDS = 300.0  # seconds within which a worker joins
_JOB = "default"

_TABLES = dict(zip(("resnet32", "transformer"), VIRTUALFLOW, strict=True))


_WORKLOADS = ("resnet32", "transformer", "digits")


@dataclass(frozen=True, kw_only=True)
class MappingConfig:
    """The configuration of trainings on many mappings of micro-batches onto workers."""

    workloads: Annotated[
        tuple[str, ...], Setting("What is trained.", metavar="NAME,...", read=parse_names, choices=_WORKLOADS)
    ] = ("resnet32", "transformer")
    out: Folder = Path("runs/mapping")
    mappings: Annotated[
        tuple[str, ...],
        Setting("Mappings to train under.", metavar="NAME,...", choices=MAPPINGS, read=parse_names),
    ] = tuple(MAPPINGS)
    iterations: Annotated[int, Setting("Of each training.", least=1)] = 20
    batch_size: Annotated[int, Setting("Over all workers.", least=_MICRO_BATCH)] = 48
    dtype: Annotated[
        Literal["float64", "float32"], Setting("In float32, rounding differs with the mapping.")
    ] = "float64"
    exact: Annotated[bool, Setting("Sum exactly: all mappings end with the same bits.")] = False
    dropout: Annotated[float, Setting("Probability that a unit is dropped.", least=0, below=1)] = 0.2
    # Learning rate; a large one amplifies rounding errors.
    lr: Annotated[float, Setting("Learning rate.", above=0, below=inf)] = 0.001
    samples: Annotated[int, Setting("First samples of the data, to train on.", least=1)] = 250
    test_samples: Annotated[int, Setting("First samples of the test data.", least=1)] = 500
    seed: Seed = 1
    data: Annotated[
        tuple[str, ...],
        Setting(
            "What a workload trains on, as its script's --data has it.  [default: generated; Python's own "
            "text]",
            metavar="[NAME=]SPEC",
        ),
    ] = ()
    again: Annotated[bool, Setting("Train also what has been trained with the same options.")] = False

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Outcome:
    """What a training has ended with."""

    state: torch.Tensor  # parameters and running statistics, (elements,)
    figures: dict[str, Any]  # other figures: numbers, texts, and lists of them


@dataclass(frozen=True)
class MappedRun:
    """Outcome of a training on one mapping."""

    state: torch.Tensor  # parameters and running statistics that worker 0 ended with, (elements,)
    apart: float  # largest difference between what the workers that stayed to the end have
    splits: list[dict[str, int]]  # batch sizes of the workers in each iteration, by name
    seconds: float  # duration, with the processes' starts


class MappedTraining:
    """Training of a workload on one mapping after the other, on data as its script's `--data` has it."""

    def __init__(self, name: str, config: MappingConfig, data: str | None = None) -> None:
        if config.batch_size > config.samples:
            raise ValueError(f"batch size {config.batch_size}: must be at most the {config.samples} samples")
        values = ((f"--{name.replace('_', '-')}", str(getattr(config, name))) for name in _PASSED)
        words = [word for pair in values for word in pair]
        words += ["--micro-batch", str(_MICRO_BATCH)]
        words += ["--data", data] if data is not None else []
        self.training = Training(name, (*words, *_RANDOM.get(name, ())))
        self.options = self.training.options()
        self.workload = self._fresh()
        self._config = config

    def configuration(self, mapping: Mapping | None = None) -> str:
        """Return all that the outcome of `run` on a mapping, or of `alone`, depends on."""
        if mapping is None:
            return repr(self.training)
        return repr((self.training, mapping, self._config.exact))

    def alone(self, *, backwards: bool = False) -> torch.Tensor:
        """Train in this process by `train_alone`; return parameters and running statistics, (elements,)."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self.options.threads)
        try:
            self.workload = self._fresh()
            train_alone(self.workload, self.options, backwards=backwards)
        finally:
            torch.set_num_threads(threads)
        return state_vector(self.workload.model.state_dict())

    def evaluated(self, state: torch.Tensor) -> dict[str, float]:
        """Return loss and accuracy of parameters and running statistics, (elements,), on the test set."""
        tensors = self.workload.model.state_dict().values()
        parts = torch.split(state, [tensor.numel() for tensor in tensors])
        with torch.no_grad():
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.view_as(tensor))
        return evaluate(self.workload)

    def run(
        self, mapping: Mapping, folder: Path, watch: Callable[[int], object] = lambda done: None
    ) -> MappedRun:
        """Train on a mapping, by real processes; `watch` is called with the number of finished iterations."""
        began = time.monotonic()
        cluster = _cluster(mapping, folder, self._config)
        with cluster:
            play = _Play(cluster, mapping, self._line(mapping), self._config)
            play.to_end(watch)
        states = [state_vector(torch.load(folder / f"{name}.pt")) for name in play.staying]
        apart = max(_apart(state, states[0]) for state in states)
        return MappedRun(states[0], apart, play.splits, time.monotonic() - began)

    def _fresh(self) -> Workload:
        return self.training.make(self.options)

    def _line(self, mapping: Mapping) -> list[str]:
        words = [self.training.name, *self.training.arguments]
        if not mapping.micro_batches:
            where = words.index("--micro-batch")
            del words[where : where + 2]
        return [*words, "--test-samples", "0"]


_PASSED = (
    "iterations",
    "batch_size",
    "dtype",
    "dropout",
    "lr",
    "seed",
    "test_samples",
    "samples",
)
"""Options of the workloads' script that are this experiment's."""

_RANDOM = {"resnet32": ("--augment",), "digits": ("--batch-norm",)}
"""Further options of workloads, by which what they do depends on random numbers and batches."""


class _Play:
    """A cluster whose workers come, go and change as a mapping says."""

    def __init__(
        self, cluster: LocalCluster, mapping: Mapping, line: Sequence[str], config: MappingConfig
    ) -> None:
        self._cluster = cluster
        self._mapping = mapping
        self._line = line
        self._config = config
        self._names = [f"worker-{number}" for number in range(mapping.workers)]
        self._gone: set[str] = set()
        self._processes: dict[str, Process] = {}
        for number, share in enumerate(mapping.shares):
            self._start(number, share)
        self.splits: list[dict[str, int]] = []

    @property
    def staying(self) -> list[str]:
        """Return the names of the workers that have not left or died."""
        return [name for name in self._processes if name not in self._gone]

    def to_end(self, watch: Callable[[int], object]) -> None:
        """Let all events happen, and wait for the end of the training."""
        cluster = self._cluster
        with (
            contextlib.closing(Observer(cluster.manager, ())) as observer,
            ManagerClient(cluster.manager) as client,
        ):
            left = list(self._mapping.events)
            for _ in followed(cluster, observer, self._gone):
                done = len(observer.iterations)
                watch(done)
                if left and done >= self._config.iterations:  # a newcomer would begin another job
                    break
                if left and done and done >= left[0].after * self._config.iterations:
                    try:
                        self._do(left[0], client, observer)
                    except InvalidRequestError as error:
                        raise self._too_short(left[0]) from error
                    del left[0]
        if left:
            raise self._too_short(left[0])
        self.splits = [
            {name: part.batch_size for name, part in record.parts.items()} for record in observer.iterations
        ]

    def _too_short(self, event: Event) -> RunTooShortError:
        return RunTooShortError(
            f"the training ended before worker-{event.worker} {event.kind}: give more iterations than "
            f"{self._config.iterations}"
        )

    def _start(self, number: int, share: float) -> None:
        name = f"worker-{number}"
        options = {"--max-batch-size": str(self._most(share))} if share < 1 else {}
        save = str(self._cluster.folder / f"{name}.pt")
        self._processes[name] = self._cluster.start_worker(
            name, _SCRIPT, [*self._line, "--save", save], options
        )

    def _most(self, share: float) -> int:
        """Return the samples that a part of the whole batch has, in whole micro-batches."""
        return max(1, math.ceil(share * self._config.batch_size / _MICRO_BATCH)) * _MICRO_BATCH

    def _do(self, event: Event, client: ManagerClient, observer: Observer) -> None:
        name = f"worker-{event.worker}"
        if event.kind == "joins":
            client.pause(_JOB)  # a quick job would be over before the worker has started
            self._start(event.worker, event.share)
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while not (observer.poll() and name in observer.members):
                self._cluster.check(self._gone)
                if time.monotonic() > deadline:
                    raise UnavailableError(f"{name} did not join within {_PATIENCE_SECONDS:g} s")
                time.sleep(_POLL_SECONDS)
            client.resume(_JOB)
        elif event.kind == "changes":
            client.set_bounds(_JOB, name, Bounds(maximum=self._most(event.share)))
        else:
            self._gone.add(name)
            if event.kind == "leaves":
                client.drain(_JOB, name)
            else:
                self._processes[name].kill()


def run(config: MappingConfig, console: Console) -> dict[str, Any]:
    """Train each workload on each mapping; figures are saved after each, as report.json and report.png."""
    names = list(dict.fromkeys(config.workloads))
    data = by_workload("data", config.data, names, str)
    figures: dict[str, Any] = {"config": options_of(config), "workloads": {}}
    config.out.mkdir(parents=True, exist_ok=True)
    with make_progress(console, 36) as progress:
        for name in names:
            trained = MappedTraining(name, config, data.get(name))
            alone = _kept(trained, "plain", None, config, partial(_alone, trained), console)
            rows: dict[str, Any] = {}
            figures["workloads"][name] = {"data": trained.workload.data, **alone.figures, "mappings": rows}
            first: torch.Tensor | None = None
            for title in dict.fromkeys(config.mappings):
                mapping = MAPPINGS[title]
                train = partial(_mapped, trained, title, config, progress)
                one = _kept(trained, title, mapping, config, train, console)
                if first is None and mapping.micro_batches:
                    first = one.state
                rows[title] = one.figures | {
                    "difference": _apart(one.state, alone.state),
                    "difference_from_first": None if first is None else _apart(one.state, first),
                }
                files.write_json(figures, config.out / "report.json")
                save(plots.differences(figures), config.out / "report.png")
    for name, entry in figures["workloads"].items():
        _show(name, entry, console)
    console.print(f"Figures, plot and logs: {config.out}", soft_wrap=True)
    return figures


def _kept(
    trained: MappedTraining,
    title: str,
    mapping: Mapping | None,
    config: MappingConfig,
    train: Callable[[], Outcome],
    console: Console,
) -> Outcome:
    """Return a training's outcome: from its file, if that is of the same configuration, or by `train`."""
    name, configuration = trained.training.name, trained.configuration(mapping)
    path = config.out / name / f"{title}.pt"
    if not config.again and path.exists():
        kept = torch.load(path)
        if kept.pop("configuration") == configuration:
            console.print(f"{name} on {title}: has been run")
            return Outcome(**kept)
    outcome = train()
    content = io.BytesIO()
    torch.save({"configuration": configuration, **asdict(outcome)}, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, content.getvalue())
    return outcome


def _alone(trained: MappedTraining) -> Outcome:
    """Train in this process, both ways."""
    backwards, alone = trained.alone(backwards=True), trained.alone()
    return Outcome(alone, {"alone": trained.evaluated(alone), "rounding": _apart(backwards, alone)})


def _mapped(trained: MappedTraining, title: str, config: MappingConfig, progress: Progress) -> Outcome:
    """Train on a mapping."""
    name, mapping = trained.training.name, MAPPINGS[title]
    task = progress.add_task(f"{name} on {title}", total=config.iterations)
    one = trained.run(mapping, config.out / name / title, lambda done: progress.update(task, completed=done))
    figures = {
        "workers": mapping.workers,
        "micro_batches": mapping.micro_batches,
        "difference_between_workers": one.apart,
        "splits": len({tuple(split.values()) for split in one.splits}),
        "members": sorted({len(split) for split in one.splits}),
        "seconds": round(one.seconds, 1),
        **trained.evaluated(one.state),
    }
    return Outcome(one.state, figures)


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference of any element."""
    return float((one - other).abs().max())


_COLUMNS: Columns = {
    "members": ("workers", lambda its: " to ".join(map(str, dict.fromkeys((its[0], its[-1]))))),
    "splits": ("splits", "{}"),
    "difference": ("difference", "{:.1e}"),
    "loss": ("loss", "{:.6f}"),
    "accuracy": ("accuracy", "{:.2%}"),
}


def _show(name: str, entry: dict[str, Any], console: Console) -> None:
    """Print a workload's table, and VirtualFlow's beside it."""
    plain = {"members": [1], "splits": "", "difference": 0.0, **entry["alone"]}
    backwards = {"members": [1], "splits": "", "difference": entry["rounding"]}
    rows = {"plain PyTorch": plain, "plain, backwards": backwards, **entry["mappings"]}
    title = f"{name} on {entry['data']}"
    console.print(table_of(title, "mapping", _COLUMNS, rows.items(), missing="", no_wrap=True))
    compared = [title for title, row in entry["mappings"].items() if row["micro_batches"]]
    if compared:
        apart = max(entry["mappings"][title]["difference_from_first"] for title in compared)
        console.print(f"Those with micro-batches differ from mapping {compared[0]} by {apart:.1e} at most.")
    if name in _TABLES:
        _show_beside(entry["mappings"], _TABLES[name], console)


def _show_beside(rows: dict[str, Any], title: str, console: Console) -> None:
    """Print our accuracies by number of workers beside VirtualFlow's by number of GPUs."""
    theirs = VIRTUALFLOW[title]
    counts = list(next(iter(theirs.values())))
    table = make_table(f"Beside VirtualFlow's {title}: accuracy in %", "workers or GPUs", *map(str, counts))

    def ours(kind: str) -> list[str]:
        cells = [rows.get(f"{count}{kind}") for count in counts]
        return ["-" if row is None else f"{100 * row['accuracy']:.2f}" for row in cells]

    table.add_row("ours", *ours(""))
    table.add_row("ours, uneven", *ours("-uneven"))
    table.add_row("ours, without micro-batches", *ours("-without"))
    for label, values in theirs.items():
        table.add_row(f"theirs, {label}", *(f"{values[n]:.2f}" if n in values else "-" for n in counts))
    console.print(table)


def _cluster(mapping: Mapping, folder: Path, config: MappingConfig) -> LocalCluster:
    port = str(free_ports(1)[0]) if mapping.all_reduce else ""

    def surroundings(name: str) -> Surroundings:
        if not mapping.all_reduce or not name.startswith("worker-"):
            return Surroundings()
        rank = name.removeprefix("worker-")
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(mapping.workers)}
        return Surroundings(environment={**place, "MASTER_ADDR": LOOPBACK, "MASTER_PORT": port})

    return LocalCluster(
        folder.resolve(),
        workers=mapping.workers,
        shards=0 if mapping.all_reduce else 1,
        policy="even",
        surroundings=surroundings,
        # A worker that is only held up keeps its part.
        manager_options=(
            "--silence",
            "120",
            *(("--exact",) if config.exact and mapping.micro_batches else ()),
        ),
    )

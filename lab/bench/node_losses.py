"""Measure what the loss of nodes costs a job on Ray.

For each, how long no step was taken, beyond what one takes, and how many were done again. Each node is a
tree of processes on this machine, which are killed at once. Services and workers each have a node of their
own, and there is a spare one for what is lost. The status is 1 where the parameters at the end are not those
of one process.

Example:
  evenpace lab bench nodes --repeats 3 --silence 3 --json nodes.json
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from rich.console import Console

from evenpace.local.terminal import make_table
from idl.settings import Checked, Setting
from lab.bench.costs import chosen, measured
from lab.bench.ray_job import PLACE, STEADY, RayCluster, RayJob, Silence, difference
from lab.fields import Repeats, parse_names


@dataclass(frozen=True)
class NodesConfig(Checked):
    """The job, and what is lost (InvalidRequestError: a value is out of its range)."""

    # What is lost, by their names in `lab.bench.node_losses.LOSSES`, in this order; all if empty.
    losses: Annotated[
        tuple[str, ...],
        Setting(
            "What is killed: worker, shard, manager, controller, head.  [default: all]",
            metavar="KIND,...",
            read=parse_names,
        ),
    ] = ()
    workers: Annotated[int, Setting("Of the job.", least=2, most=16)] = 2
    shards: Annotated[int, Setting("Of the parameter server.", least=1, most=8)] = 2
    checkpoint_every: Annotated[int, Setting("Versions, at a shard.", least=1)] = 20
    silence: Silence = None
    repeats: Repeats = 3


_CALM = 40  # steps between two losses
_PAUSE = 0.05  # seconds that each iteration takes longer


class _Losses:
    """A job, and the losses of what it runs on."""

    def __init__(self, config: NodesConfig, cluster: RayCluster, job: RayJob) -> None:
        self.shards = config.shards
        self._cluster = cluster
        self._job = job
        self.workers = [f"w{number}" for number in range(config.workers)]

    def add_nodes(self) -> None:
        for kind in [STEADY] * (1 + self.shards) + [PLACE] * len(self.workers):
            self._cluster.add(kind)

    def measure(self, lose: Callable[["_Losses"], None]) -> dict[str, float]:
        """Cause a loss, wait until all workers train again, and return its cost."""
        job, progress = self._job, self._job.progress
        normal = job.go_on(_CALM)
        redone, attempt = progress.redone, progress.attempt
        progress.longest = 0.0
        lose(self)
        job.go_on(10)
        job.all_train(self.workers)
        job.go_on(10)
        return {
            "step_s": normal,
            "still_s": max(0.0, progress.longest - normal),
            "redone": progress.redone - redone,
            "attempts": progress.attempt - attempt,
        }

    def lose_controller(self) -> None:
        """Kill the controller's process, which is on the head; that itself goes on."""
        said = self._job.log.count(_CONTROLLER_IS_BACK)
        (controller,) = [one for one in self._cluster.head.processes if "ray::Controller" in one.cmdline()[0]]
        controller.kill()
        self._job.until(
            "the controller is started again", lambda: self._job.log.count(_CONTROLLER_IS_BACK) > said
        )

    def lose_head(self) -> None:
        """Kill the head, and with it the cluster; start another, and go on with the job there."""
        self._cluster.end()
        self._cluster.begin()
        self.add_nodes()
        self._job.submit(resume=True)

    def lose(self, name: str, kind: str) -> None:
        """Kill the node, with a resource `kind`, of the process of a name."""
        process = self._job.process(name)
        node = self._cluster.node_of(process)
        self._cluster.add(kind)  # there is one to spare
        self._job.go_on(1)
        self._job.progress.longest = 0.0
        self._cluster.kill(node)


_CONTROLLER_IS_BACK = "the job's controller was started again"

LOSSES: dict[str, Callable[[_Losses], None]] = {
    "worker": lambda its: its.lose(its.workers[-1], PLACE),
    "shard": lambda its: its.lose(f"ps-{its.shards - 1}", STEADY),
    "manager": lambda its: its.lose("manager", STEADY),
    "controller": _Losses.lose_controller,
    "head": _Losses.lose_head,
}
"""What is killed, by name: the node of the process of that name, but of the controller its process alone."""

_WORDS = {
    "worker": "a worker's node",
    "shard": "a shard's node",
    "manager": "the manager's node",
    "controller": "the controller's process",
    "head": "the head, hence the cluster; another one goes on",
}


def run(config: NodesConfig, console: Console) -> dict[str, Any]:
    """Cause all losses to a job, one after the other, and print and return their costs."""
    causes = chosen("losses", config.losses, LOSSES)
    with RayCluster(config.silence) as cluster:
        job = RayJob(
            cluster,
            str(config.workers),
            config.shards,
            config.checkpoint_every,
            pause=_PAUSE,
        )
        losses = _Losses(config, cluster, job)
        losses.add_nodes()
        job.submit()
        job.all_train(losses.workers)
        costs = measured(causes, config.repeats, losses.measure, console)
        iterations, error = job.finish()
    figures = asdict(config) | {"iterations": iterations, **difference(error), **costs}
    _show(console, figures)
    return figures


def _show(console: Console, figures: dict[str, Any]) -> None:
    silence = "Ray's own time" if figures["silence"] is None else f"{figures['silence']:g} s"
    title = (
        f"{figures['workers']} workers, {figures['shards']} shards, {figures['step_s'] * 1e3:.0f} ms a step, "
        f"a checkpoint every {figures['checkpoint_every']} steps; silent nodes are given up after {silence}"
    )
    table = make_table(title, "killed", "no step for s", "at most s", "steps done again")
    for name, cost in figures["costs"].items():
        times = (f"{cost[key]:.1f}" for key in ("still_s", "longest_s"))
        table.add_row(_WORDS[name], *times, f"{cost['redone']:.0f}")
    console.print(table)
    console.print(
        f"after {figures['iterations']:,} iterations, the parameters differ by {figures['error']:.1e} from "
        "those of one process on the whole batches"
    )

"""Attack a live manager and a live shard while an honest job trains on them.

Told are the inputs tried and the harm done: crashes, hangs, memory that grows, and changed bits of the honest
job's parameters, which are compared with those of an undisturbed run. The status is 1 where there was any.

Example:
  evenpace lab bench hostile --minutes 10 --inputs 1000000 --seed 1 --json hostile.json
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

import idl
from evenpace.local.cluster import LocalCluster
from evenpace.local.terminal import make_table
from idl.errors import UnavailableError
from idl.settings import Checked, Setting
from lab.attacks.attackers import Attackers, Harm, Tally, Target
from lab.attacks.honest_job import JOB, WORKERS, HonestJob
from lab.attacks.inputs import Inputs, Known
from lab.attacks.long_answers import long_histories, long_pulls
from lab.attacks.lurkers import Lurkers
from lab.attacks.tokens_of_attackers import Tokens
from lab.bench.connected_workers import allow_files
from lab.bench.watch import Watch, summary
from rpc.client import Client


@dataclass(frozen=True)
class HostileConfig(Checked):
    """The length and the size of an attack (InvalidRequestError: a value is not allowed)."""

    seconds: Annotated[float, Setting("At most.", name="minutes", unit=60, above=0, below=inf)] = 60.0
    # The inputs at most; None for no limit.
    inputs: Annotated[int | None, Setting("At most.  [default: no limit]", least=1)] = None
    seed: Annotated[int, Setting("Of all that is thrown.", least=0)] = 0
    pace: float = 0.05  # seconds that an honest worker computes for in each iteration
    memory_mib: int = 16  # MiB of parameters that the shard may hold


_FILES = 2000  # open files that the services' and the attackers' processes may need
_EACH = 6  # attackers of each service
_TURN = 0.2  # seconds that the attackers run for before the lurkers and the honest job are looked after
_HANG_SECONDS = 30.0  # seconds without an iteration of the honest job that count as a hang
_HARMS = 100  # kinds of harm, after which the attack is over: it has succeeded


def run(config: HostileConfig, console: Console, json_path: Path | None = None) -> dict[str, Any]:
    """Attack, and print and return the results (UnavailableError: the honest job did not start).

    Beside the figures' file are the services' logs, and the inputs sent before each harm.
    """
    allow_files(_FILES)
    figures: dict[str, Any] = {"config": asdict(config)}
    logs = json_path.with_name(f"{json_path.name}.logs") if json_path is not None else None
    with (
        _services(config, logs) as (cluster, tokens),
        _trained(cluster, tokens, config.pace) as honest,
        Watch(cluster.pid("manager")) as of_manager,
        Watch(cluster.pid("ps-0")) as of_shard,
    ):
        honest.begin()
        began = time.monotonic()
        tally = _attack(console, config, _targets(config, cluster, tokens, honest), honest)
        figures["seconds"] = time.monotonic() - began
        honest.finish()
        for name in cluster.services:
            if not cluster[name].is_running:
                tally.harm(f"{name} ended: {cluster[name].failure()}")
        ended = honest.outcome()
    figures |= _tried(tally, figures["seconds"])
    figures["services"] = {"manager": summary(of_manager.samples), "shard": summary(of_shard.samples)}
    for failure in honest.failures:
        tally.harm(f"honest job: {failure}")
    figures["honest"] = _honest(honest.seconds)
    figures["honest"]["bits_changed"] = None if ended is None else _bits_changed(config, console, *ended)
    figures["harms"] = {what: harm.times for what, harm in tally.harms.items()}
    if figures["harms"] or figures["honest"]["bits_changed"] != 0:
        figures["failure"] = "harm was done"
    _show(console, figures)
    if json_path is not None:
        _write_inputs(tally.harms, json_path)
    return figures


@contextlib.contextmanager
def _services(config: HostileConfig, logs: Path | None = None) -> Iterator[tuple[LocalCluster, Tokens]]:
    """Start manager and shard, which log to the folder `logs` if given; yield them and their tokens."""
    with tempfile.TemporaryDirectory(prefix="evenpace-attack-") as folder:
        tokens = Tokens(Path(folder))
        options = ("--deterministic", "--memory-mib", str(config.memory_mib))
        cluster = LocalCluster(
            logs or Path(folder) / "logs",
            workers=WORKERS,
            credentials=tokens.credentials,
            token_key=tokens.key,
            shard_options=lambda name: options,
            policy="even",
        )
        with cluster:
            yield cluster, tokens


@contextlib.contextmanager
def _trained(
    cluster: LocalCluster, tokens: Tokens, pace: float, last: int | None = None
) -> Iterator[HonestJob]:
    with (
        tempfile.TemporaryDirectory(prefix="evenpace-honest-") as folder,
        HonestJob(cluster, Path(folder), tokens.credentials, pace, last) as honest,
    ):
        yield honest


def _attack(
    console: Console,
    config: HostileConfig,
    targets: Sequence[Target],
    honest: HonestJob,
) -> Tally:
    """Send inputs until the time, the inputs or the kinds of harm are used up."""
    attackers = Attackers(targets, config.seed)
    lurkers = Lurkers(targets[:2], attackers.tally, config.seed)
    tally = attackers.tally
    began = time.monotonic()
    with Progress(TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("", total=None)
        try:
            while (now := time.monotonic()) < began + config.seconds:
                attackers.attack(_TURN)
                lurkers.go_on(now)
                training = honest.look()
                for target in targets:
                    target.inputs.see(honest.iterations)
                if honest.silent_for > _HANG_SECONDS:
                    tally.harm(f"honest job: no iteration for {_HANG_SECONDS:g} s")
                is_over = not training or len(tally.harms) > _HARMS
                if is_over or (config.inputs is not None and tally.inputs >= config.inputs):
                    break
                bar.update(
                    task,
                    description=f"{tally.inputs} inputs, {tally.inputs / (now - began + 1e-9):.0f}/s, "
                    f"{honest.iterations} honest iterations, {len(tally.harms)} harms",
                )
        except OSError as error:
            tally.harm(f"a service cannot be reached: {error}")
        finally:
            attackers.close()
            lurkers.close()
    return tally


def _tried(tally: Tally, seconds: float) -> dict[str, Any]:
    """Return the inputs tried and the services' reactions, for JSON."""
    return {
        "inputs": tally.inputs,
        "inputs_per_second": tally.inputs / seconds,
        "connections": tally.connections,
        "slowest_answer_s": dict(tally.slowest),
        "tried": dict(tally.tried.most_common()),
        "outcomes": {
            kind: {what: count for (of, what), count in tally.outcomes.most_common() if of == kind}
            for kind in sorted({of for of, _ in tally.outcomes})
        },
    }


def _targets(config: HostileConfig, cluster: LocalCluster, tokens: Tokens, honest: HonestJob) -> list[Target]:
    """Return the services as targets, one for each attacker, with a job of its own."""
    of_manager, of_shard = idl.batchsize_manager.BatchSizeManager, idl.parameter_server.ParameterServer
    run, (shard,) = _run_of_honest(cluster, tokens), cluster.shard_addresses
    workers = honest.workers
    targets = []
    for number in range(_EACH):
        job = f"mallory-{number}"
        for name, address, definition, victim, own, deaf in (
            ("manager", cluster.manager, of_manager, JOB, job, long_histories(job)),
            ("shard", shard, of_shard, f"{JOB}/{run}", f"{job}/x", long_pulls(f"{job}/deaf")),
        ):
            # At the shards a token covers all names that begin with the job's; at the manager, one.
            jobs = (own, own, f"{own}/y")
            inputs = Inputs(definition, jobs, f"{config.seed} {name} {number}", Known(victim, workers))
            hello, impostures = tokens.hello(definition, job), tokens.impostures(definition, job, JOB)
            sentinel = _sentinel(definition, own)
            targets.append(Target(name, address, inputs, sentinel, deaf, hello, impostures))
    return targets


def _sentinel(definition: type, job: str) -> tuple[str, Any]:
    """Return method and request of a call that is answered at once."""
    if definition is idl.batchsize_manager.BatchSizeManager:
        return "history", idl.batchsize_manager.HistoryRequest(job, 0, 1)
    return "state", idl.parameter_server.StateRequest(idl.common.Identity(job, "mallory", "mallory"))


def _run_of_honest(cluster: LocalCluster, tokens: Tokens) -> str:
    """Return the suffix of the honest job's name at the shard, which is its run."""
    service = idl.batchsize_manager
    client = Client(service.BatchSizeManager, cluster.manager, "manager", credentials=tokens.credentials)
    with contextlib.closing(client):
        run: str = client.call("history", service.HistoryRequest(JOB, 0, 1)).run
        return run


def _honest(seconds: Sequence[float]) -> dict[str, Any]:
    """Return number and durations of the honest job's iterations, for JSON."""
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    return {
        "iterations": len(seconds),
        "iteration_ms": {"p50": float(p50), "p99": float(p99), "max": max(seconds) * 1e3},
        "stalls": sum(value > _HANG_SECONDS for value in seconds),
    }


def _bits_changed(
    config: HostileConfig, console: Console, iterations: int, parameters: NDArray[np.float64]
) -> int:
    """Return the number of bits in which the honest job's parameters differ from an undisturbed run's."""
    console.print(f"{iterations} iterations again, undisturbed")
    with (
        _services(config) as (cluster, tokens),
        _trained(cluster, tokens, 0.0, last=iterations) as honest,
    ):
        honest.wait()
        undisturbed = honest.outcome()
    if undisturbed is None or undisturbed[0] != iterations:
        raise UnavailableError(f"the undisturbed job failed: {honest.failures or undisturbed}")
    one, two = (values.view(np.uint8) for values in (parameters, undisturbed[1]))
    return int(np.unpackbits(one ^ two).sum())


def _show(console: Console, figures: dict[str, Any]) -> None:
    title = f"{figures['inputs']} inputs in {figures['seconds']:.0f} s, {figures['inputs_per_second']:.0f}/s"
    table = make_table(title, "kind", "tried", "what the services did")
    for kind, count in figures["tried"].items():
        outcomes = figures["outcomes"].get(kind, {})
        table.add_row(kind, str(count), ", ".join(f"{what} {times}" for what, times in outcomes.items()))
    console.print(table)
    for name, service in figures["services"].items():
        memory = service["rss_mib"]
        console.print(
            f"{name}: {memory['settled']:.1f} MiB after {memory['settled_after_s']:.0f} s, "
            f"{memory['end']:.1f} at the end ({memory['slope_per_minute']:+.2f} a minute); "
            f"{service['files']['most']} file descriptors at most, {service['files']['end']} at the end; "
            f"{service['cores']:.2f} cores"
        )
    honest = figures["honest"]
    times = honest["iteration_ms"]
    console.print(
        f"honest job: {honest['iterations']} iterations, {times['p50']:.0f} ms (99%: {times['p99']:.0f}, at "
        f"most {times['max']:.0f}); {honest['bits_changed']} bits of its parameters changed"
    )
    console.print(f"{len(figures['harms'])} harms{':' if figures['harms'] else ''}")
    slowest = (f"{name} {seconds:.2f} s" for name, seconds in figures["slowest_answer_s"].items())
    console.print(f"the slowest answers to attackers: {', '.join(slowest)}")
    for harm, times in figures["harms"].items():
        console.print(f"  {harm} ({times} times)")


def _write_inputs(harms: Mapping[str, Harm], json_path: Path) -> None:
    """Write the inputs sent before each harm to files beside `json_path`, so that they can be tried again."""
    for number, (what, harm) in enumerate(harms.items()):
        if harm.inputs:
            lines = [json.dumps({"kind": one.kind, "hex": one.data.hex()}) for one in harm.inputs]
            text = "\n".join([json.dumps({"harm": what}), *lines, ""])
            json_path.with_name(f"{json_path.name}.harm-{number}.jsonl").write_text(text)

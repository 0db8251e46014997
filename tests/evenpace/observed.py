"""A small cluster of real processes that train, and that let themselves be watched."""

import contextlib
import re
import subprocess
import sys
import urllib.request
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

import idl
from evenpace.local.cluster import service
from evenpace.metrics.catalogue import METRICS
from rpc.client import Client
from rpc.processes import Process
from tests import ROOT
from tests.scripts import train_until_told

SCRIPT = Path(train_until_told.__file__)
JOB, WORKERS = "digits", ("a", 'b "\\ é')  # a worker's name may be anything that can be printed
ADDED = ("_total", "_bucket", "_sum", "_count")


@dataclass
class Observed:
    """The cluster."""

    folder: Path  # its files
    # The processes by part; workers by "worker 0" and so on.
    popens: dict[str, subprocess.Popen] = field(default_factory=dict)

    def log(self, name):
        """Return the lines that a process has logged so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def metrics(self, name):
        """Return the address of a process's metrics; None before it has printed it."""
        found = re.search(r"metrics at https?://(\S+)/metrics", self.log(name))
        return found and found[1]

    def scrape(self, name):
        """The samples of one scrape of a part."""
        with urllib.request.urlopen(f"http://{self.metrics(name)}/metrics", timeout=120) as answer:
            return samples(answer.read().decode())

    def finish(self):
        """Let the workers come to their end; their exit statuses."""
        (self.folder / "until").touch()
        return [popen.wait(240) for name, popen in self.popens.items() if name.startswith("worker")]


def samples(text):
    """Samples of an exposition: (name, labels, value)."""
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def described(name):
    """The entry of the table for a sample's name; None where there is none."""
    names = (name, *(name.removesuffix(added) for added in ADDED if name.endswith(added)))
    return next((METRICS[each] for each in names if each in METRICS), None)


@contextlib.contextmanager
def observed_cluster(folder, options=("--metrics", "127.0.0.1:0")):
    """Manager, shard and two workers, each with `options`, and a DataPartitionManager with metrics."""
    with contextlib.ExitStack() as stack:
        cluster = Observed(folder)

        def start(name, part, *arguments, options=options):
            running = stack.enter_context(service(part, *arguments, *options, log=folder / f"{name}.log"))
            cluster.popens[name] = running.popen
            return running.address

        # Who is held up is not to be taken for silent.
        manager = start(
            *("manager", "manager", "--workers", "2", "--silence", "240", "--state", str(folder / "manager"))
        )
        every = ("--checkpoint-every", "5")
        shard = start("ps", "ps", "--state", str(folder / "ps"), *every)
        services = ("--manager", str(manager), "--ps", str(shard), "--job", JOB)
        for number, name in enumerate(WORKERS):
            command = [sys.executable, "-m", "evenpace", "worker", *services, "--name", name, *options]
            command += [str(SCRIPT), "--until", str(folder / "until")]
            log = folder / f"worker {number}.log"
            worker = Process(f"worker {number}", command, log, environment={"PYTHONPATH": str(ROOT)})
            cluster.popens[worker.name] = stack.enter_context(worker).popen
        cluster.partitions = start(
            *("partitions", "partitions", "--workers", "1", "--silence", "600"),
            options=("--metrics", "127.0.0.1:0"),
        )
        yield cluster


@contextlib.contextmanager
def partition_holder(address):
    """A worker that holds a part of the data."""
    identity = idl.common.Identity("parts", "holder", uuid.uuid4().hex)
    with contextlib.closing(
        Client(idl.data_partition.DataPartitionManager, address, "DataPartitionManager")
    ) as client:
        client.call("join", idl.data_partition.JoinRequest(identity, "127.0.0.1:1", 100))
        yield

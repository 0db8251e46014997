"""The command lines, files and resources of a job's processes, and the job's secrets."""

import contextlib
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from batchsize_manager.client import ManagerClient
from evenpace.cli.services import manager, ps, worker
from idl.errors import InvalidRequestError, UnauthorisedError
from rpc.certificates import CA_KEY_FILE, issue
from rpc.credentials import CA_FILE
from rpc.server import Security
from rpc.tokens import write_secret
from scheduler.ray.access import Access
from scheduler.ray.commands import resources, task
from scheduler.ray.process_actor import FOLDER, LISTEN, TLS, make_folder
from scheduler.ray.secrets import TOKEN_FILE, TOKEN_KEY_FILE, make_secrets
from scheduler.ray.submission import MANAGER, Scale, Submission
from scheduler.ray.training import WORKER_VARIABLE
from tests import ROOT
from tests.services import manager_service, serving

COMMANDS = {"manager": manager, "ps": ps, "worker": worker}
JOBS = [
    Submission(name="job", storage=Path("/jobs"), workers=Scale(2, 4), shards=2),
    Submission(name="job", storage=Path("/jobs"), workers=Scale(3, 3), shards=0, script=Path("/x/train.py")),
    Submission(
        name="job",
        storage=Path("/jobs"),
        script=Path("inner/train.py"),
        arguments=("--epochs", "3", "--workers", "nine"),
        manager_options=("--sync", "ssp", "--staleness", "2"),
        shard_options=("--keep", "60"),
        worker_options=("--min-batch-size", "3"),
        environment={"MODE": "fast", WORKER_VARIABLE: "theirs"},
        files={"inner/train.py": b"pass", "data": b"1"},
    ),
]


@pytest.fixture(scope="module")
def secrets():
    """The secrets of a job."""
    return make_secrets("job")


def names(job):
    """The names of all processes of a job."""
    return [*job.services, *map(job.worker, range(job.workers.most))]


def parsed(command):
    """The options of a command line, read by the command itself."""
    kind, *words = (word.replace(LISTEN, "127.0.0.1:0").replace(FOLDER, "/folder") for word in command)
    return COMMANDS[kind].make_context(kind, words).params


@pytest.mark.parametrize("job", JOBS)
def test_the_commands_of_all_processes_are_read_by_evenpace(secrets, job):
    """No option is unknown to its command, and only services listen."""
    for name in names(job):
        one = task(name, job, secrets)
        assert one.name == name
        assert parsed(one.command)
        assert one.is_service == (name in job.services)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("manager", ("--sync", "ssp", "--staleness", "2")),
        ("ps-0", ("--keep", "60")),
        ("w0", ("--min-batch-size", "3")),
    ],
)
def test_more_options_reach_the_processes_that_they_are_for(secrets, name, options):
    """Each kind of process is given its own, and no other."""
    assert [one for one in names(JOBS[2]) if options[0] in task(one, JOBS[2], secrets).command] == [name]


@pytest.mark.parametrize("job", JOBS)
def test_only_services_have_the_keys_of_the_authority_and_of_the_tokens(secrets, job):
    """A worker has its certificate and its token, by which it can make no others."""
    for name in names(job):
        files = dict(task(name, job, secrets).files)
        if name in job.services:
            assert files.keys() == {CA_FILE, CA_KEY_FILE, TOKEN_KEY_FILE}
            continue
        assert not {CA_KEY_FILE, TOKEN_KEY_FILE} & {Path(file).name for file in files}
        for content in (secrets.service[CA_KEY_FILE], secrets.service[TOKEN_KEY_FILE]):
            assert not any(content.strip() in other for other in files.values())
        assert files[TOKEN_FILE] == secrets.client[TOKEN_FILE]
        assert job.files.items() <= files.items()


def test_secrets_are_not_shown(secrets):
    """Neither a job's secrets nor the task of a process has their contents in its text."""
    for text in (repr(secrets), repr(task(MANAGER, JOBS[0], secrets)), repr(task("w0", JOBS[0], secrets))):
        assert "PRIVATE KEY" not in text
        assert secrets.service[TOKEN_KEY_FILE].decode() not in text
        assert secrets.client[TOKEN_FILE].decode() not in text


@contextlib.contextmanager
def guarded_manager(folder, secrets):
    """A manager with a job's secrets, as its actor would start it."""
    for name, content in secrets.service.items():
        write_secret(folder / name, content.decode())
    credentials = issue(folder, TLS, ("127.0.0.1",), 365)
    security = Security(credentials, folder / TOKEN_KEY_FILE)
    with serving(manager_service(), security=security) as address:
        yield address


def test_a_job_reaches_its_own_manager_and_no_other(tmp_path, secrets):
    """The certificate and the token of the job are both needed; those of another job open nothing."""
    for name in ("server", "client", "other"):
        (tmp_path / name).mkdir()
    own = Access.write(tmp_path / "client", secrets.client).credentials
    other = Access.write(tmp_path / "other", make_secrets("job").client).credentials
    with guarded_manager(tmp_path / "server", secrets) as address:
        with ManagerClient(address, own) as client, pytest.raises(InvalidRequestError, match="no job 'job'"):
            client.jobs("job")  # it was admitted: the manager has no job yet
        for refused in (other, replace(own, token=other.token), replace(own, token=None)):
            with pytest.raises(UnauthorisedError), ManagerClient(address, refused) as client:
                client.jobs("job")


def test_a_process_takes_the_resources_that_it_was_given():
    """A worker takes what is above 0; services take next to nothing, wherever CPUs are given away."""
    job = Submission(
        name="job", cpus_per_worker=2.5, gpus_per_worker=0, resources_per_worker={"TPU": 4, "none": 0}
    )
    assert resources("w0", job) == {"CPU": 2.5, "TPU": 4}
    assert resources("w0", Submission(name="job", cpus_per_worker=0, gpus_per_worker=0.5)) == {"GPU": 0.5}
    for name in job.services:
        assert resources(name, job) == {}
        assert resources(name, Submission(name="job", resources_per_service={"steady": 1})) == {"steady": 1}


def test_folders_of_processes_that_were_killed_are_removed(tmp_path, monkeypatch):
    """And no others, whatever the processes' ids: these say nothing in another container."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = "from scheduler.ray.process_actor import make_folder; print(make_folder(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        theirs = Path(other.stdout.readline().strip())
        own = make_folder()
        assert {theirs, own} == set(tmp_path.iterdir())
        other.kill()
    again = make_folder()
    assert {own, again} == set(tmp_path.iterdir())

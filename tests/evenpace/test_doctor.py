"""`evenpace doctor`: conditions made on purpose, and the findings about them."""

import contextlib
import datetime
import http.server
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace

import click
import pytest

from batchsize_manager.client import ManagerClient
from batchsize_manager.partitions.partitioned_job import PartitionsConfig
from batchsize_manager.partitions.service import DataPartitionService
from evenpace.cli import cli
from evenpace.doctor import checkup as running
from evenpace.doctor import (
    clock,
    gpu,
    job_network,
    local_network,
    machine,
    resource_limits,
    secrets,
    service_checks,
    state_folder,
    versions,
)
from evenpace.doctor.checkup import run
from evenpace.doctor.findings import LEVELS, Subject, ok
from rpc import certificates, tokens
from rpc.address import Address
from rpc.credentials import Credentials
from rpc.server import Security
from tests.disks import fill
from tests.evenpace.commands import python
from tests.made_up_machine import Machine
from tests.services import (
    MemberWorker,
    address_of_our_own,
    manager_process,
    manager_service,
    serving,
    shard_process,
    shard_service,
)

QUICK = 0.5  # seconds

# `evenpace` with more time for each check: this machine may be held up, which would be a finding.
PATIENT = (
    "from evenpace.doctor import checkup as c; c._SECONDS = 120.0; from evenpace.cli import main; main()"
)


def found(check, **subject):
    """Return a check's findings, as (level, found and advice)."""
    return [(one.level, f"{one.found} {one.advice}") for one in check(Subject(**subject))]


def worst(check, **subject):
    """Return the worst finding of a check."""
    return max(found(check, **subject), key=lambda one: LEVELS.index(one[0]))


def called(kind, address, credentials=None, timeout=60.0):
    """Return the findings about a service."""
    subject = Subject(credentials=credentials or Credentials(), timeout=timeout)
    return list(getattr(service_checks, kind)(subject, address))


def worst_of(findings):
    """Return the worst level, and the texts of all findings at that level."""
    level = max((one.level for one in findings), key=LEVELS.index)
    return level, " ".join(f"{one.found} {one.advice}" for one in findings if one.level == level)


def evenpace_doctor(*options, prefix=()):
    """Run the command; return its status, and its findings from JSON."""
    command = [*prefix, sys.executable, "-c", PATIENT, "doctor", "--json", "--timeout", "60", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.stdout, done.stderr
    read = json.loads(done.stdout)
    assert sum(read["counts"].values()) == len(read["findings"])
    return done.returncode, read["findings"]


# -- findings, and how checks are run


def test_a_check_that_fails_or_hangs_is_a_problem(monkeypatch):
    """It comes after the check's findings so far; a check that hangs is not waited for, others go on."""
    monkeypatch.setattr(running, "_SECONDS", 2.0)
    go_on = threading.Event()

    def fails(subject):
        yield ok("fails", "so far")
        raise RuntimeError("no such thing")

    def hangs(subject):
        yield ok("hangs", "so far")
        go_on.wait()

    try:
        checks = {"fails": fails, "hangs": hangs, "fine": lambda subject: [ok("fine", "well")]}
        findings = run(Subject(), checks)
    finally:
        go_on.set()
    levels = [(one.subject, one.level) for one in findings]
    assert levels == [(name, level) for name in ("fails", "hangs") for level in ("ok", "problem")] + [
        ("fine", "ok")
    ]
    assert "RuntimeError: no such thing" in findings[1].found
    assert "did not end within 2 s" in findings[3].found


def test_nothing_is_changed(tmp_path):
    """The state's folder is as it was, and one that is missing is not made."""
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "mine").write_text("kept")
    assert worst(state_folder.state, state=folder)[0] in ("ok", "warning")  # the disk may be slow, or small
    assert [path.name for path in folder.iterdir()] == ["mine"]
    assert any("not there yet" in text for _, text in found(state_folder.state, state=tmp_path / "a" / "b"))
    assert not (tmp_path / "a").exists()


# -- services


@pytest.fixture(scope="module")
def partitions():
    """A DataPartitionManager for all tests that can share one, and its service."""
    service = DataPartitionService(PartitionsConfig())
    with serving(service) as address:
        yield address, service


PUSHED = {
    "communication_time": 0.3,
    "backward_time": 0.1,
    "first_bucket_time": 0.05,
    "other_buckets_time": 0.25,
    "last_bucket_time": 0.05,
}
ADVICE = {
    "clipping": "as by clipping",
    "rounded": "`evenpace worker --push-dtype bfloat16`",
    "ps": "another `evenpace ps`",
    "buckets": "`bucket_cap_mb=4`",
    "overlap": "`evenpace job policy net overlap`",
    "larger": "`evenpace job batch-size net SAMPLES`",
}


EVERY = {
    "job": "net",
    "mode": "bsp",
    "policy": "learned",
    "sizer": "fixed",
    "exchange": "parameter_server",
    "spec": SimpleNamespace(micro_batch=None),
}


@pytest.mark.slow
def test_a_job_whose_network_is_its_bottleneck():
    """It is named with how much transfers take, and what would help it, no more; other jobs are not."""
    with serving(manager_service()) as address:
        jobs = {name: MemberWorker(address, name) for name in ("net", "computing")}
        for _ in range(120):
            jobs["net"].iterate(**PUSHED)
            jobs["computing"].iterate(communication_time=0.2)
        (told,) = [one for one in called("manager", address) if one.found.startswith("job ")]
        jobs["net"].close()
        assert not any(one.found.startswith("job ") for one in called("manager", address))
        jobs["computing"].close()
    assert told.level == "warning"
    figures = "60% of an iteration, 14% of all transfers are hidden"
    assert told.found == f"job 'net' is bound by communication: exposed transfers take {figures}"
    assert helpful(told.advice) == {"rounded", "ps", "overlap", "larger"}


def helpful(advice):
    """Return which of all pieces of advice are given."""
    return {key for key, words in ADVICE.items() if words in advice}


def advised(overlaps=(True, False), **changes):
    """Return the advice for a job, as one text."""
    summary = SimpleNamespace(**EVERY | changes)
    return " ".join(line for each in overlaps for line in job_network.advice(summary, overlaps=each))


@pytest.mark.parametrize(
    ("changes", "without"),
    [
        ({}, []),
        ({"mode": "asp"}, ["clipping"]),
        ({"spec": SimpleNamespace(micro_batch=8)}, ["rounded"]),
        ({"policy": "overlap"}, ["overlap"]),
        ({"sizer": "goodput"}, ["larger"]),
        ({"sizer": "schedule"}, ["larger"]),
    ],
)
def test_advice_is_true_for_the_job(changes, without):
    """What a job cannot do, or does already, is no advice."""
    assert helpful(advised(**changes)) == set(ADVICE) - {"buckets", *without}
    assert helpful(advised(exchange="fixed_group")) == {"buckets", "overlap", "larger"}


def test_options_that_are_advised_exist():
    """Each command and argument that the advice names is there."""
    text = " ".join(advised(overlaps=[True], sizer=sizer) for sizer in ("fixed", "goodput"))
    commands = [words.split() for words in re.findall(r"`evenpace (.*?)`", text)]
    assert len(commands) >= 6
    for words in commands:
        here = cli
        while words and isinstance(here, click.Group):
            here = here.get_command(click.Context(here), words.pop(0))
            assert here is not None
        options = {option for parameter in here.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_nobody_listens():
    """A port without a listener is a problem, with advice on what to start, and so is an unknown name."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        level, text = worst_of(called("manager", Address(*bound.getsockname())))
    assert level == "problem"
    assert "Connection refused" in text
    assert "--listen" in text
    level, text = worst_of(called("manager", Address("no-such-host.invalid", 4300)))
    assert level == "problem"
    assert "'no-such-host.invalid' does not resolve" in text


def test_a_black_hole():
    """An address that drops all packets is given up after the timeout."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        while True:  # until its queue is full: then the kernel drops what comes
            client = stack.enter_context(socket.socket())
            client.settimeout(QUICK)
            try:
                client.connect(listener.getsockname())
            except TimeoutError:
                break
        level, text = worst_of(called("manager", Address(*listener.getsockname()), timeout=QUICK))
    assert level == "problem"
    assert "no answer in time" in text
    assert "firewall" in text


def test_a_service_that_is_frozen(monkeypatch):
    """A service that accepts connections and is silent is a problem, within the check's time."""
    monkeypatch.setattr(running, "_SECONDS", 30.0)  # less than calls have unless they are told
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        check = partial(service_checks.shard, address=Address(*listener.getsockname()))
        level, text = worst_of(run(Subject(timeout=QUICK), {"shard": check}))
    assert level == "problem"
    assert "frozen" in text
    assert "did not end" not in text


@pytest.fixture
def web_server():
    """A plain HTTP server, in a thread."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Address(*server.server_address)
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", ["manager", "shard", "partitions"])
def test_a_web_server_in_its_place(web_server, kind):
    """A web server at a service's address is recognised."""
    level, text = worst_of(called(kind, web_server))
    assert level == "problem"
    assert "is a web server (BaseHTTP" in text


def test_the_other_service(manager, shard, partitions):
    """Addresses of services that were mixed up are recognised, and nothing is left behind there."""
    there = {
        "manager": (manager, "BatchSizeManager"),
        "shard": (shard, "ParameterServer"),
        "partitions": (partitions[0], "DataPartitionManager"),
    }
    for kind, (other, (address, name)) in itertools.product(there, there.items()):
        level, text = worst_of(called(kind, address))
        assert (f"is another service, {name}" in text) == (level == "problem") == (kind != other), text
    assert partitions[1].jobs == {}


def test_a_shard_that_is_named_twice(shard):
    """Two addresses of one shard are a problem, whatever they look like; of two shards they are none."""
    with serving(shard_service()) as other:
        numeric, local = (Address(host, other.port) for host in ("127.0.0.1", "localhost"))
        for again, same in ((numeric, True), (local, True), (shard, False)):
            found = list(service_checks.each_shard_once(Subject(shards=(other, again), timeout=60.0)))
            assert [one.level for one in found] == ["problem"] * same, found
            assert not same or f"{other} and {again} are the same shard" in found[0].found


@pytest.mark.parametrize("second", ["127.0.0.2", "::1"])
def test_an_address_of_two_at_which_nobody_answers(manager, monkeypatch, second):
    """A name with a second address, where the service does not listen, is a warning."""
    resolve = socket.getaddrinfo

    def two(host, port, *more, **options):
        hosts = [second, "127.0.0.1"] if host == "two.example" else [host]
        return [entry for one in hosts for entry in resolve(one, port, *more, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    monkeypatch.setattr(Address, "is_loopback", True)
    (of_addresses,) = [
        one for one in called("manager", Address("two.example", manager.port)) if one.level == "warning"
    ][:1]
    assert f"'two.example' has addresses at which nobody answers: {second} (" in of_addresses.found


# -- TLS and tokens


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A folder with an authority and a worker's certificate."""
    folder = tmp_path_factory.mktemp("secrets")
    certificates.create_authority(folder, 100)
    certificates.issue(folder, "worker", [], 100)
    return folder


def issued(folder, name, hosts, monkeypatch, days=100, ago=0):
    """Return a certificate that was issued some days ago."""
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=ago)
    made = certificates._authority(folder)
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "_now", lambda: then)
        patched.setattr(certificates, "_authority", lambda folder: made)
        return certificates.issue(folder, name, hosts, days, force=True)


@pytest.mark.parametrize(
    ("kind", "level", "text"),
    [
        ("fine", "ok", "its certificate (CN=fine), valid until"),
        ("expired", "problem", "its certificate (CN=expired) expired on"),
        ("renamed", "problem", "is not for '127.0.0.1', but for manager.example.org, 10.0.0.1"),
    ],
)
def test_certificates_of_services(authority, monkeypatch, kind, level, text):
    """A service's certificate may be valid, have expired, or be for another name."""
    hosts = ["manager.example.org", "10.0.0.1"] if kind == "renamed" else ["127.0.0.1"]
    service = issued(authority, kind, hosts, monkeypatch, ago=101 if kind == "expired" else 0)
    worker = Credentials.of_folder(authority / "worker")
    with serving(manager_service(), security=Security(service)) as address:
        findings = called("manager", address, worker)
    of_certificate = [one for one in findings if "certificate" in one.found]
    assert [one.level for one in of_certificate] == [level], findings
    assert text in of_certificate[0].found
    if level == "problem":
        assert findings[-1] is of_certificate[0]
        assert "evenpace certs issue" in of_certificate[0].advice


def test_another_authority(authority, tmp_path, monkeypatch):
    """Certificates of two authorities are not trusted, from either side."""
    certificates.create_authority(tmp_path, 10)
    stranger = certificates.issue(tmp_path, "stranger", [], 10)
    service = issued(authority, "service", ["127.0.0.1"], monkeypatch)
    with serving(manager_service(), security=Security(service)) as address:
        level, text = worst_of(called("manager", address, stranger))
        assert level == "problem"
        assert "is not trusted" in text
        mixed = Credentials(service.ca, stranger.certificate, stranger.key)
        level, text = worst_of(called("manager", address, mixed))
        assert level == "problem"
        assert "does not take this side's certificate" in text


def test_tls_on_one_side_alone(authority, monkeypatch, manager):
    """The finding says which side speaks TLS, in both cases."""
    service = issued(authority, "service", ["127.0.0.1"], monkeypatch)
    with serving(manager_service(), security=Security(service)) as address:
        assert "speaks TLS" in worst_of(called("manager", address))[1]
    level, text = worst_of(called("manager", manager, Credentials.of_folder(authority / "worker")))
    assert level == "problem"
    assert "does not speak TLS" in text


def test_own_certificate(authority, tmp_path, monkeypatch):
    """This side's certificate is checked before any service is called."""
    fine = found(secrets.certificates, credentials=Credentials.of_folder(authority / "worker"))
    assert [level for level, _ in fine] == ["ok", "ok"]
    late = issued(authority, "late", [], monkeypatch, days=1, ago=3)
    assert "expired on" in worst(secrets.certificates, credentials=late)[1]
    os.chmod(late.key, 0o644)
    assert any("others may read" in text for _, text in found(secrets.certificates, credentials=late))
    assert late.key is not None
    os.chmod(late.key, 0o600)
    missing = Credentials.of_folder(tmp_path)
    assert worst(secrets.certificates, credentials=missing)[0] == "problem"
    assert not found(secrets.certificates)


@pytest.mark.parametrize(
    ("kind", "own", "of_service"),
    [
        ("valid", ("ok", "for job 'digits', valid until"), ("ok", "")),
        ("soon", ("warning", "for job 'digits', expires on"), ("ok", "")),
        ("expired", ("problem", "for job 'digits', expired on"), ("problem", "has expired")),
        ("foreign", ("ok", "for job 'digits'"), ("problem", "not signed with a key of this service")),
        ("garbage", ("problem", "not a token"), ("problem", "not a token")),
        ("none", None, ("problem", "asks for a job's token, and none was given")),
    ],
)
def test_tokens(tmp_path, kind, own, of_service):
    """A token may be valid, expire soon, have expired, be another service's or none; services differ."""
    key, other, file = tmp_path / "key", tmp_path / "other", tmp_path / "token"
    for one in (key, other):
        tokens.write_new_key(one, add=False)
    days = {"valid": 30, "soon": 3, "expired": -1, "foreign": 30}.get(kind, 0)
    keys = tokens.TokenKeys(other if kind == "foreign" else key)
    text = tokens.issue(keys, "digits", int(time.time() + days * 86400) if days else 0)
    tokens.write_secret(file, "garbage" if kind == "garbage" else text)
    credentials = Credentials(token=None if kind == "none" else file)
    assert [level for level, _ in found(secrets.token, credentials=credentials)] == ([own[0]] if own else [])
    if own:
        assert own[1] in worst(secrets.token, credentials=credentials)[1]
    kinds = {
        "manager": manager_service(),
        "shard": shard_service(),
        "partitions": DataPartitionService(PartitionsConfig()),
    }
    for kind_of, service in kinds.items():
        with serving(service, security=Security(token_keys=key)) as address:
            findings = called(kind_of, address, credentials)
        problems = [one.found for one in findings if one.level == "problem"]
        assert bool(problems) == (of_service[0] == "problem"), findings
        assert all(of_service[1] in problem for problem in problems)


def test_a_managers_clock_is_compared_by_a_jobs_first_event(monkeypatch, wait_until):
    """The finding has the seconds by which it is ahead, if it is."""
    with serving(manager_service()) as address:
        with ManagerClient(address, timeout=120.0) as client:
            wait_until(lambda: client.jobs().uptime > 1.2, "a manager that is older than its job")
        worker = MemberWorker(address)
        worker.iterate()
        assert any("its clock and this machine's agree" in one.found for one in called("manager", address))
        behind = SimpleNamespace(**vars(time) | {"time": lambda: time.time() - 3600})
        monkeypatch.setattr(service_checks, "time", behind)
        (apart,) = [one.found for one in called("manager", address) if "clock" in one.found]
        worker.close()
    assert "ahead of this machine's" in apart
    assert float(apart.split()[3]) == pytest.approx(3600, abs=60)


# -- this machine


def test_a_port_that_is_taken(web_server):
    """The owner of a service's port is named; a free port is ok."""
    (level, text) = worst(local_network.ports, ports=(web_server.port,))
    assert level == "warning"
    assert f"{web_server.port} is taken by process {os.getpid()}" in text
    port = address_of_our_own().port
    assert worst(local_network.ports, ports=(port,)) == ("ok", f"{port} is free ")


@pytest.mark.parametrize(("most", "expected"), [(200, "problem"), (4000, "warning")])
def test_few_open_files(monkeypatch, most, expected):
    """A low limit of open files is a problem; a middling one is a warning."""
    monkeypatch.setattr(resource_limits.resource, "getrlimit", lambda limited: (most, most))
    level, text = worst(resource_limits.open_files)
    assert (level, text.split()[0]) == (expected, str(most))


@pytest.mark.ci
def test_a_network_without_loopback():
    """A network namespace whose loopback is down is a problem."""
    prefix = ("unshare", "--net")
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made here")
    code, findings = evenpace_doctor(prefix=prefix)
    (problem,) = [one for one in findings if one["subject"] == "loopback" and one["level"] == "problem"]
    assert "127.0.0.1 does not work" in problem["found"]
    assert any(one["subject"] == "interfaces" and "none but loopback" in one["found"] for one in findings)
    assert code == 1


def test_a_folder_that_hides_a_package(tmp_path, monkeypatch):
    """A module beside the user's scripts with the name of one of ours is a problem."""
    (tmp_path / "worker.py").write_text("")
    monkeypatch.chdir(tmp_path)
    level, text = worst(versions.packages_hidden)
    assert level == "problem"
    assert "rename it (to my_worker, say)" in text


def test_versions_that_are_too_old(monkeypatch):
    """Installed packages are compared with the requirements in evenpace's metadata."""
    import importlib.metadata

    assert worst(versions.versions)[0] in ("ok", "note")
    of_evenpace = importlib.metadata.distribution("evenpace")

    demanding = SimpleNamespace(
        version=of_evenpace.version,
        metadata={"Requires-Python": ">=4"},
        requires=["numpy>=1000", "no-such-package>=1", "other-package>=1; extra == 'other'", "click>=1"],
    )
    of_others = importlib.metadata.distribution
    monkeypatch.setattr(
        importlib.metadata, "distribution", lambda name: demanding if name == "evenpace" else of_others(name)
    )
    findings = {one.subject: one for one in versions.versions(Subject())}
    assert findings["Python"].level == findings["numpy"].level == "problem"
    assert findings["numpy"].advice == "pip install 'numpy>=1000'"
    assert findings["no-such-package"].found == "not installed"
    assert "other-package (other)" in findings["extras"].found
    assert findings["packages"].found.startswith("click ")


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A made-up tree of control groups, on four of eight CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return Machine(tmp_path)


def test_quotas_of_control_groups(groups, monkeypatch):
    """A quota is reported with its period, and threads are to be as many as its cores."""
    groups.mount_v2(membership="/box")
    groups.v2_counts("/sys/fs/cgroup/box", cpu_max="150000 100000")
    level, text = worst(resource_limits.cpu, root=groups.root)
    assert (level, "a quota of 1.5 cores on 4 CPUs, over periods of 100 ms" in text) == ("note", True)
    level, text = worst(resource_limits.threads, root=groups.root)
    assert (level, "set OMP_NUM_THREADS=2" in text) == ("warning", True)
    for value, expected in (("2", "ok"), ("4", "warning"), ("many", "warning")):
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert worst(resource_limits.threads, root=groups.root)[0] == expected


@pytest.mark.parametrize(("used", "expected"), [(990, "warning"), (100, "ok")])
def test_memory_of_control_groups(groups, used, expected):
    """Memory that is scarce within a group is a warning, whatever the machine has."""
    groups.mount_v1(membership="/box")
    groups.v1_counts("/box", limit=1000 * 2**20, used=used * 2**20)
    level, text = worst(resource_limits.memory, root=groups.root)
    assert (level, "of the control group's 1000 MiB are free" in text) == (expected, True)


def test_few_processes(groups):
    """A control group with few processes is a warning."""
    groups.write("/proc/self/cgroup", "0::/box")
    groups.mount_v2(membership="/box")
    groups.write("/sys/fs/cgroup/cgroup.controllers", "cpu memory pids")
    groups.v2_counts("/sys/fs/cgroup/box")
    groups.write("/sys/fs/cgroup/box/pids.max", "100")
    level, text = worst(resource_limits.processes, root=groups.root)
    assert (level, "100 processes and threads allowed, by the control group's" in text) == ("warning", True)


@pytest.mark.parametrize(
    ("governor", "driver", "level"),
    [
        ("powersave", "acpi-cpufreq", "warning"),
        ("powersave", "intel_pstate", "ok"),
        ("performance", "acpi-cpufreq", "ok"),
    ],
)
def test_governors(groups, governor, driver, level):
    """CPUs held at a low frequency are a warning, unless hardware chooses frequencies itself."""
    for cpu in range(4):
        folder = f"/sys/devices/system/cpu/cpu{cpu}/cpufreq"
        groups.write(f"{folder}/scaling_governor", governor)
        groups.write(f"{folder}/scaling_driver", driver)
    assert worst(machine.governor, root=groups.root)[0] == level


def test_little_shared_memory(small_disk, tmp_path):
    """A /dev/shm of a container engine's default size is a warning, and so is none."""
    (tmp_path / "dev").mkdir()
    assert worst(resource_limits.shared_memory, root=tmp_path)[0] == "warning"
    (tmp_path / "dev/shm").symlink_to(small_disk)
    level, text = worst(resource_limits.shared_memory, root=tmp_path)
    assert (level, "of 1 MiB are free in /dev/shm" in text) == ("warning", True)


def test_a_clock_that_jumps(monkeypatch):
    """A clock that is set forward during the check is reported, with the seconds."""
    begun = time.monotonic()
    wall = SimpleNamespace(
        monotonic=time.monotonic, time=lambda: 30.0 * (time.monotonic() > begun + 0.3) + time.monotonic()
    )
    monkeypatch.setattr(clock, "time", wall)
    (jumped,) = [one.found for one in clock.steady(Subject()) if "jumped" in one.found]
    assert 29_000 < float(jumped.split()[3]) < 31_000


# -- the state's folder


def test_a_full_disk(small_disk):
    """A full disk is a problem, and so is one that is read-only."""
    fill(small_disk / "ballast")
    texts = [text for level, text in found(state_folder.state, state=small_disk) if level == "problem"]
    assert any("is full" in text for text in texts), texts
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    level, text = worst(state_folder.state, state=small_disk)
    assert (level, "may not be written to" in text) == ("problem", True)


@pytest.mark.parametrize(
    ("kind", "level"), [("nfs4", "warning"), ("fuse.sshfs", "warning"), ("overlay", "note"), ("ext4", "ok")]
)
def test_kinds_of_file_systems(groups, tmp_path, kind, level):
    """A network file system is a warning, by the mount that is nearest to the folder."""
    folder = tmp_path / "a b" / "state"
    folder.mkdir(parents=True)
    mounted = str(folder.parent).replace(" ", "\\040")
    groups.write(
        "/proc/self/mountinfo",
        "22 1 0:20 / / rw - btrfs /dev/root rw\n"
        f"30 22 0:26 / {mounted} rw,nosuid shared:4 - {kind} server:/export rw\n"
        f"31 22 0:27 / {mounted}/statement rw - ext3 /dev/other rw",
    )
    assert state_folder.file_system(folder, groups.root) == kind
    assert found(state_folder.state, state=folder, root=groups.root)[0][0] == level


# -- GPUs, by a program in nvidia-smi's place: none can be expected here

NVIDIA_SMI = """#!/bin/sh
case "$1" in
  --query-gpu=*) echo "NVIDIA H200, 570.86.15, 20000, 143771" ;;
  *) echo "| NVIDIA-SMI 570.86.15    Driver Version: 570.86.15    CUDA Version: {cuda}    |" ;;
esac
exit {status}
"""


@pytest.mark.parametrize(
    ("status", "can", "built", "level", "text"),
    [
        (0, "12.8", "12.6", "ok", "the driver runs CUDA 12.8, torch is built for 12.6"),
        (0, "12.2", "12.6", "ok", "the driver runs CUDA 12.2"),
        (0, "11.8", "12.6", "problem", "the driver runs CUDA 11.8, but torch is built for CUDA 12.6"),
        (0, "12.8", None, "warning", "is built for CPUs alone: GPUs are not used"),
        (9, "12.8", "12.6", "problem", "nvidia-smi does not work"),
    ],
)
def test_gpus(tmp_path, monkeypatch, status, can, built, level, text):
    """The driver is compared with torch's build, and a GPU in use by others is reported."""
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI.format(cuda=can, status=status))
    program.chmod(0o755)
    monkeypatch.setattr(gpu, "_SECONDS", 120.0)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gpu, "torch_version", lambda: ("2.13.0", built))
    texts = found(gpu.gpu)
    assert any(one == level and text in said for one, said in texts), texts
    if not status:
        used = "0: NVIDIA H200, driver 570.86.15; 19.5 GiB of 140 GiB in use by others"
        assert any(used in said for _, said in texts)


# -- the command


@pytest.mark.ci
def test_a_cluster_that_is_well(tmp_path):
    """Manager and shard are ok with TLS and tokens; the exit status is 0; lines say the same."""
    folder, key, token = tmp_path / "secrets", tmp_path / "key", tmp_path / "token"
    certificates.create_authority(folder, 100)
    for name, hosts in (("services", ["127.0.0.1"]), ("me", [])):
        certificates.issue(folder, name, hosts, 100)
    tokens.write_new_key(key, add=False)
    tokens.write_secret(token, tokens.issue(tokens.TokenKeys(key), tokens.ALL_JOBS, 0))
    secure = ("--tls", str(folder / "services"), "--token-key", str(key))
    mine = ("--tls", str(folder / "me"), "--token-file", str(token), "--state", str(tmp_path / "state"))
    with manager_process(*secure) as manager, shard_process(*secure) as shard:
        options = ("--manager", str(manager), "--ps", str(shard), *mine)
        code, findings = evenpace_doctor(*options)
        lines = python("-c", PATIENT, "doctor", "--timeout", "60", *options)
    about = [one for one in findings if str(manager) in one["subject"] or str(shard) in one["subject"]]
    assert len(about) == 7  # reached, certificate, call, for each; and the manager's version
    assert all(one["level"] == "ok" or "a call takes" in one["found"] for one in about), about
    subjects = {one["subject"] for one in findings}
    assert {"certificate", "authority", "token", "clock", "open files", "state"} <= subjects
    assert {"GPU", "containers"} <= subjects
    assert code == any(one["level"] == "problem" for one in findings)
    assert lines.returncode == any(line.startswith("problem ") for line in lines.stdout.splitlines())
    assert lines.stdout.count(f"manager {manager}: ") == 4
    assert not (tmp_path / "state").exists()

"""Many jobs that share one real Ray cluster, by the real commands."""

import contextlib
import itertools
import json
import random
import re
import signal
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from rpc import tokens
from scheduler.allocation import devices
from scheduler.cluster import history
from scheduler.cluster.history import account, read
from scheduler.ray.cluster_settings import FOLDER
from tests.evenpace.dashboard.live_pages import Page
from tests.scheduler.ray.submitted import SCRIPT, Jobs
from tests.scripts.train_least_squares import SPEC

pytest.importorskip("ray", reason="Ray is not installed: pip install 'evenpace[ray]'")

from lab.ray_nodes import RayNode
from scheduler.ray.cluster_scheduler import LOG_FILE

pytestmark = [pytest.mark.slow, pytest.mark.ci]


def cluster_environment(temporary):
    """Variables of a cluster whose policy fails while a file is there; see `tests/startup`."""
    return {"TMPDIR": temporary, "EVENPACE_TESTS_FAILING_POLICY": f"{temporary}/failing_policy"}


class Shared(Jobs):
    """Jobs on a cluster that they share.

    Attributes:
        operator: A file with an operator's token; None where the cluster asks for none.
    """

    operator = None

    @contextlib.contextmanager
    def failing_policy(self, wait_until):
        """Have the policy fail, whatever it is asked; jobs keep what they have."""
        file = Path(self._environment["EVENPACE_TESTS_FAILING_POLICY"])
        log = self.storage / FOLDER / LOG_FILE
        failed = "the policy has failed, and what it decided last stands: RuntimeError('a defect')"
        file.touch()
        try:
            yield
            before = len(log.read_text())
            self.cluster("policy", "weighted_fair_sharing")
            wait_until(lambda: failed in log.read_text()[before:], "the policy's failure")
        finally:
            file.unlink()

    @contextlib.contextmanager
    def showing(self, token):
        """Have commands show a token that is in a file; None for none."""
        before = self._address
        self._address = (*before, "--token-file", token) if token else before
        yield
        self._address = before

    def cluster(self, command, *arguments):
        """Run a command of `evenpace cluster`, which must be well; what it prints."""
        with self.run("cluster", command, *arguments) as run:
            assert run.end() == 0, run.out.read_text()
            return run.out.read_text()

    def refused(self, *command):
        """Run a command of `evenpace cluster`, or another one, that must be refused; what it says."""
        other = command[0] in ("attach", "job")
        with self.run(*(() if other else ("cluster",)), *command) as run:
            assert run.end() == 1, run.text
            return run.text

    def queue(self, name, *options, iterations, pace):
        """Submit a small job, whose pace ends with `hurry`."""
        arguments = (
            "--iterations",
            iterations,
            "--pace",
            pace,
            "--go",
            self._go(name),
            "--out",
            self.out(name),
        )
        arguments += ("--computed", self._computed(name))
        self.cluster("submit", "--workers", 4, "--name", name, *options, SCRIPT, *arguments)

    def hurry(self, name):
        """Let a job come to its end soon."""
        self._go(name).touch()

    def _go(self, name):
        return self.out(name).with_suffix(".go")

    @property
    def now(self):
        """The jobs by name, as the scheduler has kept them."""
        file = self.storage / "_cluster/cluster.json"
        saved = json.loads(file.read_text()) if file.exists() else {"machine": {"jobs": []}}
        return {job["request"]["name"]: job for job in saved["machine"]["jobs"]}

    @property
    def status(self):
        """What `evenpace cluster status` prints for programs."""
        return json.loads(self.cluster("status", "--json"))

    def have(self, **running):
        """Whether so many workers of these jobs train, and none else is there."""
        now = self.now
        phases = {name: [phase for _, phase in now[name]["leases"].values()] for name in running}
        return all(phases[name] == ["running"] * count for name, count in running.items())


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """The only node of a cluster, with four devices."""
    folder = tmp_path_factory.mktemp("ray")
    with (
        tempfile.TemporaryDirectory(prefix="evenpace-", ignore_cleanup_errors=True) as temporary,
        RayNode("head", folder, cpus=4, environment=cluster_environment(temporary)) as head,
    ):
        yield head


@pytest.fixture
def jobs(head, tmp_path):
    """Commands about jobs that share that cluster, until the end of the test."""
    jobs = Shared(tmp_path, head.environment, head.address)
    yield jobs
    with jobs.showing(jobs.operator), jobs.run("cluster", "down") as command:
        command.end()


@pytest.fixture
def following(jobs):
    """A function that starts to follow a job, until the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda name: stack.enter_context(jobs.run("attach", name))


def kill_scheduler(head):
    """Kill the scheduler's process, which Ray starts again."""
    (scheduler,) = [one for one in head.processes if "ray::ClusterScheduler" in " ".join(one.cmdline())]
    scheduler.kill()


def test_two_jobs_share_a_cluster(head, jobs, following, wait_until):
    """By weights: the first gives way, and grows again; a pause and a killed scheduler lose nothing.

    Nor does a policy that fails: it is asked again, as always after a while. Who follows the jobs is told why
    they wait and how they end. The parameters of each are one process's, and no sample is computed twice.
    """
    said = jobs.cluster("up", "--storage", jobs.storage, "--interval", 1)
    assert "without --token-key, all who reach the Ray cluster may change all jobs" in said
    jobs.queue("first", iterations=900, pace=0.2)
    wait_until(lambda: jobs.have(first=4), "the first job on all devices")
    with jobs.failing_policy(wait_until):
        jobs.queue("second", "--weight", 2, iterations=300, pace=0.2)
        assert (jobs.have(first=4), jobs.now["second"]["state"]) == (True, "waiting")
        first, second = following("first"), following("second")
        wait_until(lambda: "number 1 of 1 that wait; of 4 devices first has 4" in second.text, "the queue")
    wait_until(lambda: jobs.have(first=1, second=3), "the second job's share")
    kill_scheduler(head)
    assert [(job["job"], job["target"]) for job in jobs.status["jobs"]] == [("first", 1), ("second", 3)]
    jobs.hurry("second")
    wait_until(lambda: jobs.have(first=4, second=0), "all devices for the first again")
    assert jobs.now["second"]["how"] == "done"
    jobs.cluster("pause", "first")
    wait_until(lambda: jobs.now["first"]["state"] == "suspended", "the first job's suspension")
    assert not jobs.processes("first")
    its = jobs.status["jobs"][0]
    assert (its["why"], its["place"]) == ("paused by its user", None)
    assert its["submitted"] < its["since"]
    wait_until(
        lambda: "job first is suspended: paused by its user" in first.text, "the follower of the first"
    )
    jobs.cluster("resume", "first")
    wait_until(lambda: jobs.have(first=4), "the first job's resumption")
    jobs.hurry("first")

    def past():
        return account(read(jobs.storage / FOLDER / history.FILE), time.time()).lives

    wait_until(lambda: past()[0].how == "done", "the first job's end")
    assert (first.end(), second.end()) == (0, 0)
    assert [(life.job, life.how, life.suspensions) for life in past()] == [
        ("first", "done", 1),
        ("second", "done", 0),
    ]
    counts = [devices(span.placement) for span in past()[0].spans]
    assert counts[0] == 4
    assert 4 in counts[counts.index(1) :]
    assert [life.device_seconds for life in past()] == [
        pytest.approx(jobs.now[name]["attained"]) for name in ("first", "second")
    ]
    assert 0 < jobs.status["utilisation"]["all"] < 1
    for name, iterations in (("first", 900), ("second", 300)):
        jobs.assert_trained(name, iterations)
        assert jobs.computed(name) == sum(SPEC.batch(iteration)[2] for iteration in range(iterations))


def assert_one_process(out, iterations):
    """Check what the workers of a group that trained by SGD have saved in a folder."""
    import torch

    from tests.scripts.train_formed_group import trained_alone

    parameters, average = trained_alone(0, iterations, "sgd")
    saved = [torch.load(file) for file in out.glob("*.pt")]
    ends = [end for end in saved if end["released"] is None]  # others have left before
    assert ends
    for end in ends:
        torch.testing.assert_close(dict(end["parameters"]), dict(parameters), rtol=0, atol=1e-12)
        torch.testing.assert_close(end["average"], average, rtol=0, atol=1e-12)


def test_workers_of_all_reduce_are_suspended_with_the_state_that_they_alone_have(jobs, tmp_path, wait_until):
    """They write it down first, and others go on from it: the parameters are one process's."""
    from tests.scripts import train_formed_group as script

    out, stop = tmp_path / "out", tmp_path / "stop"
    out.mkdir()

    def begun():
        """The iterations that each worker has begun, by name."""
        texts = {file.stem: file.read_text().rpartition("\n")[0] for file in out.glob("*.txt")}
        return {
            name: [int(line.split()[1]) for line in text.splitlines()] for name, text in texts.items() if text
        }

    jobs.cluster("up", "--storage", jobs.storage)
    arguments = ("--optimizer", "sgd", "--pause", 0.02, "--stop", stop, "--out", out)
    jobs.cluster("submit", "--all-reduce", "--workers", 2, "--name", "group", script.__file__, *arguments)
    wait_until(lambda: jobs.have(group=2), "both workers")
    wait_until(lambda: len(begun()) == 2 and max(map(max, begun().values())) > 12, "some iterations")
    jobs.cluster("pause", "group")
    wait_until(lambda: jobs.now["group"]["state"] == "suspended", "the job's suspension")
    assert not jobs.processes("group")
    before = begun()
    last = max(map(max, before.values()))
    jobs.cluster("resume", "group")
    wait_until(
        lambda: len(begun()) > 2 and max(map(max, begun().values())) > last + 3, "the job's resumption"
    )
    assert min(numbers[0] for name, numbers in begun().items() if name not in before) == last + 1
    iterations = max(map(max, begun().values())) + 30
    stop.with_suffix(".part").write_text(str(iterations))
    stop.with_suffix(".part").rename(stop)
    wait_until(lambda: jobs.now["group"]["how"] == "done", "the job's end")
    assert_one_process(out, iterations)


@pytest.fixture
def watched(jobs):
    """A function that starts the live page of the cluster, which ends with the test; and its process."""
    with contextlib.ExitStack() as stack:

        def watch(wait_until):
            command = stack.enter_context(jobs.run("cluster", "dashboard", "--http", "127.0.0.1:0"))
            found = wait_until(lambda: re.search(r"page on (\S+)", command.text), "the page")
            return Page(found[1], command.popen, None, command.out)

        yield watch


def test_what_cannot_be_is_refused_or_said_and_others_go_on(head, jobs, watched, tmp_path, wait_until):
    """A job fails, one is cancelled as it waits; another goes on after the scheduler was ended.

    Users change and see their own jobs alone, also after the scheduler's process was killed. Who looks at an
    operator's live page all the while sees it.
    """
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('no such luck')\n")
    assert "the cluster has no scheduler: `evenpace cluster up`" in jobs.refused("status")
    key = tmp_path / "tokens.key"
    tokens.write_new_key(key, add=False)
    shown = {name: tmp_path / f"{name}.token" for name in ("anna", "benno", tokens.OPERATOR)}
    for name, file in shown.items():
        token = tokens.issue(tokens.TokenKeys(key), name, int(time.time()) + 3600, tokens.Purpose.CLUSTER)
        tokens.write_secret(file, token)
    jobs.operator = shown[tokens.OPERATOR]
    up = ("up", "--storage", jobs.storage, "--token-key", key)
    jobs.cluster(*up, "--policy", "priority")
    assert "the cluster has a scheduler" in jobs.refused("up", "--storage", tmp_path)
    with jobs.showing(shown["anna"]):
        jobs.queue("long", iterations=300, pace=0.2)
    with jobs.showing(jobs.operator):
        jobs.cluster("submit", "--workers", 2, "--name", "broken", "--max-failures", 0, broken)
    with jobs.showing(shown["benno"]):
        jobs.queue("waits", "--weight", 2, iterations=300, pace=0.2)
    wait_until(lambda: jobs.have(long=4), "the first job on all devices")
    with jobs.showing(jobs.operator):
        for words, command in {
            "job 'long': there is another one of this name, which has not ended": (
                "submit",
                "--name",
                "long",
                SCRIPT,
            ),
            "a group that the script makes stays as it is": (
                "submit",
                "--all-reduce",
                "--fixed-group",
                SCRIPT,
            ),
            "job 'none' is not known; there are: long, broken, waits": ("pause", "none"),
            "node '10.0.0.1': none is; there are": ("drain", "10.0.0.1"),
        }.items():
            assert words in jobs.refused(*command)
    for command in (("status",), ("attach", "long")):
        assert "asks for a user's or an operator's token: give yours" in jobs.refused(*command)
    with jobs.showing(shown["benno"]):
        for words, command in {
            "job 'long' is none of user 'benno', whose jobs are: waits": ("cancel", "long"),
            "job 'long': the name is not free": ("submit", "--resume", "--name", "long", SCRIPT),
            "only an operator's token ends the scheduler": ("down",),
            "job 'long': no such job runs on the cluster; there are: none": ("attach", "long", "--end"),
        }.items():
            assert words in jobs.refused(*command)
        seen = jobs.status
        assert [job["job"] for job in seen["jobs"]] == ["other 1", "other 2", "waits"]
        assert len(seen["jobs"][0]["workers"]) == 4
        text = jobs.cluster("status", "--all")
        assert [name in text for name in ("waits", "long", "broken", "anna")] == [True, False, False, False]
    kill_scheduler(head)
    assert "asks for a user's or an operator's token" in jobs.refused("status")
    with jobs.showing(shown["anna"]):
        assert "job 'waits' is none of user 'anna'" in jobs.refused("cancel", "waits")
        assert [job["job"] for job in jobs.status["jobs"]] == ["long", "other 1", "other 2"]
        jobs.cluster("report", "--out", tmp_path / "cluster.html")
        page = (tmp_path / "cluster.html").read_text()
        assert ("long" in page, "waits" in page, "broken" in page) == (True, False, False)
        with jobs.run("attach") as listing:
            assert (listing.end(), listing.text.strip()) == (0, "long")
    assert jobs.now["waits"]["state"] == "waiting"
    with jobs.showing(jobs.operator):
        page = watched(wait_until)
    told = wait_until(lambda: page.ask("/api/status")[1].get("jobs"), "the scheduler's answer")
    assert {job["job"]: len(job["workers"]) for job in told} == {"long": 4, "broken": 0, "waits": 0}
    with page.events() as events:
        parts = dict(itertools.islice(events, 6))
    assert "<title>long: 4 devices (4 on " in parts["picture"]
    assert "number 2 of 2 that wait; of 4 devices long has 4" in parts["jobs"]
    assert "<td>benno</td>" in parts["jobs"]
    assert parts["notice"] == ""
    with jobs.showing(shown["benno"]):
        jobs.cluster("cancel", "waits")
        assert jobs.now["waits"]["how"] == "cancelled"
        assert "job 'waits' has ended" in jobs.refused("resume", "waits")
    with jobs.showing(jobs.operator):
        jobs.cluster("down")
    assert not jobs.processes("long")
    wait_until(lambda: "has no scheduler" in page.get("/healthz")["error"], "the scheduler's end on the page")
    (asking,) = [
        one for one in psutil.Process(page.popen.pid).children() if "spawn_main" in " ".join(one.cmdline())
    ]
    asking.kill()
    jobs.cluster(*up)
    wait_until(lambda: jobs.have(long=4), "the first job again")
    with page.events() as events:
        assert next(value for name, value in events if name == "jobs" and "<td>cancelled</td>" in value)
        assert page.get("/healthz")["error"] == ""
    page.popen.send_signal(signal.SIGINT)
    assert page.popen.wait(60) == 0
    assert "Traceback" not in page.log.read_text()
    jobs.hurry("long")
    wait_until(lambda: jobs.now["broken"]["how"] == "failed", "the end of both")
    assert "no such luck" in jobs.now["broken"]["reason"]
    jobs.assert_trained("long", 300)
    with jobs.showing(jobs.operator):
        assert {job["job"]: job["owner"] for job in jobs.status["jobs"]} == {
            "long": "anna",
            "broken": "",
            "waits": "benno",
        }
        assert "priority" in jobs.cluster("status")
        jobs.cluster("policy", "tiresias")
        assert "shared by tiresias" in jobs.cluster("status", "--all")
        jobs.cluster("down")
    (jobs.storage / "_cluster/cluster.json").unlink()  # the job's folder alone tells whose it was
    jobs.cluster(*up)
    for user, words in (("benno", "'long': the name is not free"), ("anna", "--resume goes on with it")):
        with jobs.showing(shown[user]):
            assert words in jobs.refused("submit", "--name", "long", SCRIPT)


@pytest.mark.release  # brings up two clusters
def test_jobs_go_on_as_nodes_and_the_whole_cluster_come_and_go(tmp_path, wait_until):
    """A node is killed, one joins, one is drained; then all of Ray is killed, and another cluster goes on.

    Each job has one process's parameters.
    """
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="evenpace-", ignore_cleanup_errors=True)
        )

        def start(name, head=None, **options):
            folder = tmp_path / name
            folder.mkdir()
            return stack.enter_context(RayNode(name, folder, head, cpus=0, **options))

        head = start("head", environment={"TMPDIR": temporary})
        nodes = [start(name, head, resources={"place": 2}) for name in ("one", "two")]
        jobs = Shared(tmp_path, head.environment, head.address)
        jobs.cluster("up", "--storage", jobs.storage, "--device", "place")
        jobs.queue("big", "--shards", 2, iterations=900, pace=1)
        jobs.queue("small", iterations=300, pace=2)
        wait_until(lambda: jobs.have(big=2, small=2), "both jobs")
        nodes[0].kill()
        wait_until(lambda: jobs.have(big=1, small=1), "both jobs on one node")
        nodes.append(start("three", head, resources={"place": 4}))
        wait_until(lambda: jobs.have(big=3, small=3), "both jobs on two nodes")
        (drained,) = [node["node"] for node in jobs.status["nodes"] if node["devices"] == 2]
        jobs.cluster("drain", drained[:12])
        wait_until(lambda: jobs.have(big=2, small=2), "both jobs on the node that stays")
        for node in (*nodes, head):
            node.kill()
        head = start("second", environment={"TMPDIR": temporary})
        start("four", head, resources={"place": 3})
        again = Shared(tmp_path, head.environment, head.address)
        again.cluster("up", "--storage", jobs.storage, "--device", "place")
        wait_until(lambda: jobs.have(big=2, small=1) or jobs.have(big=1, small=2), "both on another cluster")
        for name, iterations in (("big", 900), ("small", 300)):
            jobs.hurry(name)
            wait_until(lambda name=name: jobs.now[name]["how"] == "done", f"the end of {name}")
            jobs.assert_trained(name, iterations)
        again.cluster("down")


class Storm:
    """Faults and orders at random on a cluster of some nodes, and what its jobs come to.

    Args:
        head: The cluster's head.
        disk: Where the scheduler keeps what it decides: a small disk.
        start: Starts a node of the cluster, of a name and with a number of devices.
    """

    def __init__(self, jobs, head, disk, start, wait_until, seed):
        self._jobs, self._head, self._disk = jobs, head, disk
        self._start, self._wait_until = start, wait_until
        self._random = random.Random(seed)
        self._nodes = [start(f"node-{number}", 3) for number in range(2)]
        self.log = []  # what has befallen it

    def befall(self):
        """Let something happen to a process, a node or a job."""
        kinds = (
            self.kill_process,
            self.kill_actor,
            self.kill_node,
            self.freeze_node,
            self.pause,
            self.change_policy,
            self.fail_policy,
            self.fill_disk,
        )
        (kind,) = self._random.choices(kinds, (4, 3, 2, 2, 2, 1, 1, 2))
        self.log.append(f"{kind.__name__} {kind() or 'nothing'}")

    def kill_process(self):
        """Kill a manager, a shard or a worker of a job."""
        found = self._jobs.processes(self._random.choice([*self._jobs.now]))
        if not found:
            return None
        process = self._random.choice(found)
        with contextlib.suppress(psutil.NoSuchProcess):
            line = " ".join(process.cmdline())
            process.kill()
        return line[-80:]

    def kill_actor(self):
        """Kill the scheduler, the controller of a job, or what owns one of its processes."""
        names = ("ray::ClusterScheduler", "ray::Controller", "ray::ProcessActor")
        name = self._random.choice(names)
        found = []
        for process in (one for node in (self._head, *self._nodes) for one in node.processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [process] if name in " ".join(process.cmdline()) else []
        if not found:
            return None
        with contextlib.suppress(psutil.NoSuchProcess):
            self._random.choice(found).kill()
        return name

    def kill_node(self):
        """Lose a node; another comes."""
        number = self._random.randrange(len(self._nodes))
        self._nodes[number].kill()
        name = f"node-{len(self.log)}-again"
        self._nodes[number] = self._start(name, 3)
        return f"{number}, {name} comes"

    def freeze_node(self):
        """Freeze a node, shortly, or for so long that it counts as lost."""
        number, seconds = self._random.randrange(len(self._nodes)), self._random.choice([1.5, 10.0])
        self._nodes[number].freeze()
        time.sleep(seconds)  # the fault itself
        self._nodes[number].thaw()
        if seconds > 5.0:
            self._nodes[number].kill()  # Ray has given it up, and it ends by itself
            self._nodes[number] = self._start(f"node-{len(self.log)}-thawed", 3)
        return f"{number} for {seconds} s"

    def pause(self):
        """Pause a job, and let it go on."""
        going = [name for name, job in self._jobs.now.items() if job["state"] != "ended"]
        name = self._random.choice(going)
        self._jobs.cluster("pause", name)
        if self._random.random() < 0.5:
            self._wait_until(
                lambda: self._jobs.now[name]["state"] in ("suspended", "waiting", "ended"), "a pause", 180
            )
        if self._jobs.now[name]["state"] != "ended":
            self._jobs.cluster("resume", name)
        return name

    def change_policy(self):
        """Have another policy decide, which suspends all jobs but one, and then the first one again."""
        self._jobs.cluster("policy", "tiresias")
        self._jobs.cluster("policy", "weighted_fair_sharing")
        return "and back"

    def fail_policy(self):
        """Have the policy fail."""
        with self._jobs.failing_policy(self._wait_until):
            pass
        return "once"

    def fill_disk(self):
        """Leave no room where the scheduler keeps its state; an order is answered once there is some."""
        rest = self._disk / "rest"
        with contextlib.suppress(OSError), rest.open("wb", buffering=0) as stream:
            while stream.write(bytes(1024)):
                pass
        with self._jobs.run("cluster", "policy", "weighted_fair_sharing") as order:
            self._wait_until(lambda: "No space left" in self._jobs.status["trouble"], "trouble")
            rest.unlink()
            assert order.end() == 0, order.text
        return "for a while"


@pytest.mark.release  # takes many minutes
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1])
def test_a_cluster_survives_whatever_befalls_it(tmp_path, small_disk, wait_until, seed):
    """Each job ends with one process's parameters; one whose workers were all lost with them says so.

    At last the scheduler's process is killed while it goes down.
    """
    from tests.scripts import train_formed_group as script

    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="evenpace-", ignore_cleanup_errors=True)
        )

        def start(name, places, head=None):
            (tmp_path / name).mkdir()
            resources = {"place": places} if places else None
            environment = cluster_environment(temporary)
            return stack.enter_context(
                RayNode(name, tmp_path / name, head, cpus=0, resources=resources, environment=environment)
            )

        head = start("head", 0)
        jobs = Shared(tmp_path, head.environment, head.address)
        jobs.storage.mkdir()
        (jobs.storage / FOLDER).symlink_to(small_disk)
        up = ("up", "--storage", jobs.storage, "--device", "place")
        jobs.cluster(*up)
        jobs.queue("big", "--shards", 2, "--max-failures", 1000, iterations=900, pace=0.5)
        jobs.queue("small", "--weight", 2, "--max-failures", 1000, iterations=300, pace=1)
        out, stop = tmp_path / "out", tmp_path / "stop"
        out.mkdir()

        def submit_group(*options):
            arguments = ("--optimizer", "sgd", "--pause", 0.2, "--stop", stop, "--out", out)
            more = ("--all-reduce", "--workers", 3, "--max-failures", 1000, "--name", "group")
            jobs.cluster("submit", *more, *options, script.__file__, *arguments)

        submit_group()
        storm = Storm(
            jobs, head, small_disk, lambda name, places: start(name, places, head), wait_until, seed
        )

        def have_workers():
            for name, job in jobs.now.items():
                if name == "group" and job["how"] == "failed":
                    assert "with them its parameters" in job["reason"] or "has its state" in job["reason"], (
                        job
                    )
                    submit_group("--resume")
                    return False
                if job["state"] != "ended" and not any(
                    phase == "running" for _, phase in job["leases"].values()
                ):
                    return False
            return True

        wait_until(have_workers, "the start of all jobs", 300)
        for _ in range(6):
            for _ in range(2):
                storm.befall()
            wait_until(have_workers, f"workers of all jobs after {storm.log[-2:]}", 300)
        with jobs.run("cluster", "down") as down:
            wait_until(lambda: "waiting for" in down.text, "what it waits for")
            kill_scheduler(head)
            assert down.end() == 0, down.text
        jobs.cluster(*up)
        for name, iterations in (("big", 900), ("small", 300)):
            jobs.hurry(name)
            wait_until(lambda name=name: jobs.now[name]["how"] == "done", f"the end of {name}", 300)
            jobs.assert_trained(name, iterations)
        texts = [file.read_text().rpartition("\n")[0].splitlines() for file in out.glob("*.txt")]
        iterations = max(int(lines[-1].split()[1]) for lines in texts if lines) + 60
        stop.with_suffix(".part").write_text(str(iterations))
        stop.with_suffix(".part").rename(stop)
        wait_until(lambda: jobs.now["group"]["how"] == "done", "the end of the group", 300)
        assert_one_process(out, iterations)
        jobs.cluster("down")

"""DistributedDataParallel in groups that the manager forms: real processes, a real manager, gloo."""

import contextlib
import signal
import socket
import string
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch.distributed import TCPStore

from batchsize_manager.client import ManagerClient
from evenpace.local.cluster import service
from idl.errors import ReleasedError, UnavailableError
from idl.exchange import Seat
from lab.chaos.errors import NotPossibleHereError
from lab.chaos.rank_links import Apart, Ear
from lab.network import WorkerNetwork
from lab.proxy import Proxy
from tests.scripts import stand_in_nccl
from tests.scripts import train_formed_group as script
from tests.services import manager_process
from tests.worker.processes import processes
from worker.daemon_thread import in_daemon
from worker.exchanges.all_reduce import AllReduce
from worker.torch.formed_group import FormedGroup
from worker.torch.reaching import _CONNECT_SECONDS, reach, unreached

SCRIPT = Path(script.__file__)
NAMES = string.ascii_letters + string.digits
SEEDS = {name: number for number, name in enumerate(NAMES)}
PAUSE = ("--pause", "0.02")
IMPATIENT = ("--silence", "1.5", "--heartbeat", "0.5")  # of a manager
NORM = ("--micro-batch", "5", "--norm")  # for exact sums: batch normalisation and dropout

pytestmark = pytest.mark.slow


class Run:
    """Workers that train in one job.

    Args:
        folder: For their files.
        arguments: Of the script.
    """

    def __init__(self, folder, manager, wait_until, *arguments):
        self._folder = folder
        self._stop = folder / "stop"
        self._manager = manager
        self._wait_until = wait_until
        self._arguments = arguments
        self._workers = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._stack.close()

    def start(self, names, *arguments, options=(), launcher=()):
        """Start workers, one for each letter, whose parameters differ at first.

        Args:
            names: The letters.
            arguments: Of the script.
            options: Of `evenpace worker`.
            launcher: A command that starts the command which follows.
        """
        for name in names:
            own = ("--seed", str(SEEDS[name]), "--stop", str(self._stop), *self._arguments, *arguments)
            places = self._folder, self._manager, ()
            given = processes(
                *places, [name], script=SCRIPT, arguments=own, options=options, launcher=launcher
            )
            self._workers |= self._stack.enter_context(given)

    def seen(self, name):
        """Return what a worker has begun: attempt, iteration, start, count, rank and size of each batch."""
        file = self._folder / f"{name}.txt"
        whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
        return [tuple(map(int, line.split())) for line in whole.splitlines()]

    def reaches(self, name, iteration):
        """Wait until a worker has begun an iteration."""
        self._wait_until(
            lambda: (
                self._workers[name].poll() is not None
                or (self.seen(name) and self.seen(name)[-1][1] >= iteration)
            ),
            f"iteration {iteration} of {name}",
        )
        assert self._workers[name].poll() is None, self.log(name)

    def log(self, name):
        """Return a worker's log."""
        return (self._folder / f"{name}.log").read_text()

    def reached(self, names):
        """Return the furthest iteration that one of these workers has begun; -1 for none."""
        return max((seen[-1][1] for name in names if (seen := self.seen(name))), default=-1)

    def end_all(self, names, after=50):
        """Let these workers end after so many iterations more that none gets there before it reads when.

        Returns:
            What they have saved, and the number of iterations.
        """
        written = self._stop.with_suffix(".part")
        written.write_text(str(self.reached(names) + after))
        written.rename(self._stop)
        return [self.end(name) for name in names], int(self._stop.read_text())

    def kill(self, name):
        """Kill a worker, which has no time to do anything."""
        self._workers[name].kill()
        self._workers[name].wait()

    def freeze(self, name):
        """Freeze a worker."""
        self._workers[name].send_signal(signal.SIGSTOP)

    def thaw(self, name):
        """Let a frozen worker go on."""
        self._workers[name].send_signal(signal.SIGCONT)

    def ends_as_one_process(self, names, seed, optimizer="adam", clip=None):
        """Wait for these workers' end with the same bits, and parameters of one process.

        Returns:
            The number of iterations.
        """
        ended, iterations = self.end_all(names)
        assert len(set(map(bits, ended))) == 1
        check_equal_to_one_process(ended[0], seed, iterations, optimizer, clip)
        return iterations

    def fails(self, name):
        """Wait for a worker's end with an error, and return its log."""
        self._wait_until(lambda: self._workers[name].poll() is not None, f"the end of {name}")
        assert self._workers[name].returncode == 1, self.log(name)[-3000:]
        return self.log(name)

    def end(self, name):
        """Wait for a worker's good end, and return what it has saved."""
        self._wait_until(lambda: self._workers[name].poll() is not None, f"the end of {name}")
        assert self._workers[name].returncode == 0, self.log(name)[-3000:]
        return torch.load(self._folder / f"{name}.pt")


@contextlib.contextmanager
def running(folder, wait_until, workers, *arguments, manager=()):
    """Start a manager of jobs of so many workers, with these options; yield a `Run` with these arguments."""
    with (
        manager_process("--workers", str(workers), "--policy", "even", *manager) as address,
        Run(folder, address, wait_until, *PAUSE, *arguments) as run,
        contextlib.closing(ManagerClient(address)) as run.client,
    ):
        yield run


def bits(saved):
    """Return parameters and average, to the last bit."""
    tensors = [*saved["parameters"].values(), *saved["average"]]
    return b"".join(tensor.numpy().tobytes() for tensor in tensors)


def check_equal_to_one_process(saved, seed, iterations, optimizer, clip=None):
    """Check that parameters and any average are those of one process with the first one's parameters."""
    parameters, average = script.trained_alone(seed, iterations, optimizer, clip)
    for name, value in parameters.items():
        assert (saved["parameters"][name] - value).abs().max() < 1e-12
    for own, value in zip(saved["average"], average if saved["average"] else (), strict=True):
        assert (own - value).abs().max() < 1e-12


def first_seed(run, names):
    """Return the seed of the worker that had rank 0 at first."""
    return next(SEEDS[name] for name in names if run.seen(name)[0][4] == 0)


def test_workers_without_a_launcher_train_as_one_process_by_rmsprop(tmp_path, wait_until):
    """Three workers, whose parameters differ at first, end with the same bits: those of rank 0's training.

    So they do in the context of `model.join()`, which PyTorch has for ranks with fewer batches. They find
    each other at the address that they are given, which is not that from which they reach the manager.
    """
    with running(tmp_path, wait_until, 3, "--optimizer", "rmsprop", "--join") as run:
        run.start("abc", options=("--host", "127.0.0.2"))
        run.reaches("a", 25)
        run.ends_as_one_process("abc", first_seed(run, "abc"), "rmsprop")
        assert {line[5] for name in "abc" for line in run.seen(name)} == {3}
        assert all("met at 127.0.0.2:" in run.log(name) for name in "abc")


def test_buckets_that_are_formed_anew_are_no_sign_of_a_nan(tmp_path, wait_until):
    """The first two gradients of a worker that trains alone lie in memory in different orders."""
    with running(
        tmp_path, wait_until, 1, "--optimizer", "sgd", "--hidden", "40000", manager=["--end-on-nan"]
    ) as run:
        run.start("a")
        run.reaches("a", 2)
        run.end_all("a", after=10)  # soon after that, it diverges
        assert "NaN" not in run.log("a")


@pytest.mark.ci
def test_another_model_is_refused_alone(tmp_path, wait_until):
    """Who joins with another model ends with an error that names the difference; the others go on."""
    with running(tmp_path, wait_until, 2) as run:
        run.start("ab")
        run.reaches("a", 10)
        run.start("c", "--hidden", "9")
        assert "it has 0.weight of shape (9, 6), torch.float64 where rank 0's has" in run.fails("c")
        run.ends_as_one_process("ab", first_seed(run, "ab"))


@pytest.mark.ci
def test_a_worker_that_changes_parameters_alone_is_noticed(tmp_path, wait_until):
    """The next group's members compare their state; the error names the tensor and the ranks."""
    with running(tmp_path, wait_until, 2) as run:
        run.start("a")
        run.start("b", "--change-alone")
        run.reaches("a", 10)
        run.start("c")
        for name in "ab":
            assert "0.bias differs between workers that should have the same: ranks" in run.fails(name)


def test_a_worker_is_killed_within_an_iteration(tmp_path, wait_until):
    """The others do it again, the passes of a closure that the optimiser's step calls, without rank 0."""
    with running(tmp_path, wait_until, 3, "--closure") as run:
        run.start("abc")
        run.reaches("a", 15)
        first = first_seed(run, "abc")
        killed = next(name for name in "abc" if run.seen(name)[-1][4] == 0)  # which serves the store
        run.kill(killed)
        others = "abc".replace(killed, "")
        run.reaches(others[0], run.reached("abc") + 3)
        run.ends_as_one_process(others, first)


@pytest.mark.ci
def test_gradients_are_reduced_by_a_stand_in_for_nccl(tmp_path, wait_until):
    """A worker joins, one is killed within an iteration, and one frozen: operations are aborted by then."""
    with running(tmp_path, wait_until, 3, "--backend", stand_in_nccl.NAME, manager=IMPATIENT) as run:
        run.start("abc")
        run.reaches("a", 15)
        first = first_seed(run, "abc")
        killed = next(name for name in "abc" if run.seen(name)[-1][4] == 1)
        run.kill(killed)
        left = "abc".replace(killed, "")
        run.reaches(left[0], run.reached("abc") + 3)
        other, one = sorted(left, key=lambda name: run.seen(name)[-1][4])  # the first serves the store
        run.start("d")
        run.reaches("d", 1)
        run.freeze(other)
        run.reaches(one, run.reached(one) + 5)
        run.thaw(other)
        run.reaches(other, run.reached(one))
        names = f"{one}{other}d"
        run.ends_as_one_process(names, first)
        assert {line[5] for line in run.seen(one)} == {2, 3}


@pytest.mark.ci
def test_a_group_breaks_while_packets_are_lost_within_it(tmp_path, wait_until, needs_network):
    """Both sides are heard of by the manager all the time; the job goes on once packets pass again."""
    with (
        WorkerNetwork(2) as net,
        service("manager", "--insecure", "--workers", "2", "--policy", "even", host=net.host) as process,
        Run(tmp_path, process.address, wait_until, *PAUSE) as run,
        contextlib.closing(ManagerClient(process.address)) as client,
    ):
        try:
            ears = {name: Ear(net.address(place), net.prefix(place)) for place, name in enumerate("ab")}
        except NotPossibleHereError as error:
            pytest.skip(str(error))
        for place, name in enumerate("ab"):
            run.start(name, launcher=net.prefix(place))
        run.reaches("a", 15)
        before = client.status("default").summary.attempt
        apart = Apart({"a": ears["a"]}, {"b": ears["b"]})
        wait_until(lambda: client.status("default").summary.attempt > before, "another attempt", 60.0)
        here = run.reached("ab")
        apart.lift()
        run.reaches("a", here + 3)
        run.ends_as_one_process("ab", first_seed(run, "ab"))


@pytest.mark.ci
def test_a_newcomer_goes_on_from_the_state_that_it_was_given_last(tmp_path, wait_until):
    """Whoever sent it dies before the newcomer's first step, so that nobody else has it."""
    go = tmp_path / "go"
    with running(tmp_path, wait_until, 1, *NORM, manager=["--exact"]) as run:
        run.start("a")
        run.reaches("a", 15)
        run.start("b", "--hold", str(go))
        run.reaches("b", 15)
        ((_, given, *_),) = run.seen("b")
        run.kill("a")
        go.touch()
        (ended,), iterations = run.end_all("b")
        assert run.seen("b")[1][1] == given
    folder = tmp_path / "calm"
    folder.mkdir()
    with running(folder, wait_until, 1, *NORM, manager=["--exact"]) as run:
        run.start("a")
        (calm,), _ = run.end_all("a", after=iterations - run.reached("a"))
    assert bits(ended) == bits(calm)


@pytest.mark.ci
def test_who_is_cut_off_while_a_group_forms_ends_soon_after_the_others(tmp_path, wait_until):
    """It waits at its own store for a member that goes on without it to the end of the job."""

    def has_come():
        """Return whether the worker has a connection to its store beside that by which it serves it."""
        ends = psutil.Process(run._workers["a"].pid).net_connections("tcp")
        listens = [end.laddr.port for end in ends if end.status == psutil.CONN_LISTEN]
        return any(sum(bool(end.raddr) and end.raddr.port == port for end in ends) > 1 for port in listens)

    with running(tmp_path, wait_until, 2, manager=IMPATIENT) as run, Proxy() as proxy:
        run.start("a", options=("--manager", str(proxy.add("manager", run._manager))))
        wait_until(lambda: [job.members for job in run.client.jobs().jobs] == [1], "the first worker")
        run.start("b", "--late")
        wait_until(has_come, "the first worker at its store")
        link = proxy.links["manager"]
        link.refusing = True
        proxy.do(link.cut)
        run.reaches("b", 3)
        run.end_all("b", after=3)
        link.refusing = False
        assert run.end("a")["released"] == "all workers have finished"
        assert not run.seen("a")


@pytest.mark.ci
def test_connections_of_the_scripts_other_threads_are_left_alone(tmp_path, wait_until):
    """Those that are made while a group forms neither end with it nor break sooner."""
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        running(tmp_path, wait_until, 1, "--connect", str(other.getsockname()[1])) as run,
    ):
        run.start("a")
        run.reaches("a", 3)
        run.start("b")
        run.reaches("b", 1)
        ended, _ = run.end_all("ab", after=5)
        assert [one["beside"] for one in ended] == [[True, True], [True]]


def bare_group(**attributes):
    """Return the group of worker w0 without a model, which has no part in how members meet."""
    group = FormedGroup.__new__(FormedGroup)
    group._lock, group._over, group._gathering = threading.Condition(), 0, []
    group._session = SimpleNamespace(config=SimpleNamespace(worker="w0"))
    vars(group).update(attributes)
    return group


def test_a_store_listens_at_the_address_that_members_use_alone(caplog):
    """Where that is none of this machine's, it listens at all, and a line of log says so."""
    group = bare_group(_servers={})
    host, port = group.serve("127.0.0.3").split(":")
    assert group.serve("127.0.0.3") == f"{host}:{port}"
    reach(host, int(port), 60.0, lambda: None)
    with pytest.raises(ConnectionRefusedError):
        reach("127.0.0.1", int(port), 60.0, lambda: None)
    assert "all addresses" not in caplog.text
    port = group.serve("192.0.2.1").split(":")[1]
    reach("127.0.0.1", int(port), 60.0, lambda: None)
    assert "listens at all addresses, as this machine cannot at 192.0.2.1" in caplog.text


def test_a_group_whose_store_has_died_is_given_up_at_once():
    """Its port refuses connections, so that the process is gone that served it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        reach(host, port, 60.0, lambda: None)
    group = bare_group()
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=r"rank 0 of attempt 3 cannot be reached at .*refused"):
        group._gather(3, Seat(1, 2, f"{host}:{port}", None, False))
    assert time.monotonic() - began < 15


def test_the_wait_for_members_that_do_not_come_can_be_interrupted(interrupt, wait_until):
    """By Ctrl-C, while the group's members gather for up to half an hour; no thread goes on waiting."""
    group = bare_group(_address="")
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)

    def interrupt_once_there():
        wait_until(lambda: store.check(["attempt-3/member-0"]), "the first member")
        interrupt()
        if not has_ended.wait(20.0):
            store.set("attempt-3/member-1", "nobody w1")  # lest this test wait for half an hour

    before, has_ended = threading.active_count(), threading.Event()
    interrupter = in_daemon(interrupt_once_there)
    with pytest.raises(KeyboardInterrupt):
        group._gather(3, Seat(0, 2, f"127.0.0.1:{store.port}", None, False))
    has_ended.set()
    interrupter.result()
    assert not store.check(["attempt-3/member-1"])
    wait_until(lambda: threading.active_count() <= before, "the end of the thread that waits", 30.0)


def test_a_store_that_dies_while_it_is_connected_to_is_given_up_with_the_attempt():
    """PyTorch would go on trying for a minute and more."""
    group = bare_group(_group=None, _attempt=3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        gathering = in_daemon(group._gather, 3, Seat(1, 2, f"{host}:{port}", None, False))
        server.accept()[0].close()  # whether anybody listens
        store, _ = server.accept()
        store.recv(1)  # PyTorch asks whether it is a store
        group.cut(4)
        with pytest.raises(UnavailableError, match="attempt 3 is over"):
            gathering.result(20)
        store.close()


def test_the_wait_for_members_ends_once_this_worker_cannot_go_on(wait_until):
    """As where it was cut off and the others have finished: no attempt begins that would end the wait."""
    group = bare_group(_address="", _group=None, _attempt=3)
    exchange = AllReduce()
    exchange.form_groups_by(group)
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    seat = Seat(0, 2, f"127.0.0.1:{store.port}", None, False)
    gathering = in_daemon(group._gather, 3, seat)
    wait_until(lambda: store.check(["attempt-3/member-0"]), "the first member")
    exchange.abandon(ReleasedError("all workers have finished"))
    try:
        with pytest.raises(UnavailableError, match="attempt 3 is over"):
            gathering.result(20)
    finally:
        store.set("attempt-3/member-1", "nobody w1")  # lest a thread wait for half an hour
    with pytest.raises(UnavailableError, match="attempt 4 is over"):  # nor can it form another one
        group._gather(4, seat)


def test_the_error_names_who_cannot_be_reached():
    """Where a group cannot be formed, since packets between two of its members are lost for good."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        lost = "{}:{}".format(*gone.getsockname())
    group = bare_group()
    with socket.create_server(("127.0.0.1", 0)) as there:
        group._members = {"w1": "{}:{}".format(*there.getsockname()), "w2": lost}
        said = group._name_unreached(3)
    assert said.startswith(f"; w0 cannot reach w2 at {lost} (")
    assert "w1" not in said
    group._over = 4
    assert group._name_unreached(3) == ""


def test_members_are_looked_for_all_at_once():
    """However many do not answer, it takes as long as one does."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = "{}:{}".format(*full.getsockname())
        with socket.create_connection(full.getsockname()):  # there is no room for another one
            began = time.monotonic()
            found = unreached({f"w{number}": address for number in range(8)})
            assert time.monotonic() - began < 4 * _CONNECT_SECONDS
    assert found == [f"w{number} at {address} (timed out)" for number in range(8)]


def test_the_wait_for_a_host_that_does_not_answer_ends_with_the_attempt():
    """Or when the time is up."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):  # there is no room for another one
            looks = iter([None])
            with pytest.raises(StopIteration):
                reach(*full.getsockname(), 60.0, lambda: next(looks))
            with pytest.raises(TimeoutError):
                reach(*full.getsockname(), 0.1, lambda: None)

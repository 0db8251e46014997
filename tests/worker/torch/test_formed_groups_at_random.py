"""Workers of DistributedDataParallel that die, freeze, are drained and join at random moments."""

import contextlib
import random
import time

import pytest

from batchsize_manager.client import ManagerClient
from tests.services import manager_process
from tests.worker.torch.test_formed_groups import (
    NAMES,
    NORM,
    PAUSE,
    Run,
    bits,
    check_equal_to_one_process,
    first_seed,
    trained_calmly,
)
from worker.torch.shards import mesh_shape

MANAGER = ("--policy", "even", "--silence", "1.5", "--heartbeat", "0.5")
SECONDS_FROZEN = (0.2, 4.0)  # shorter and longer than the manager's silence
KINDS = ("kill", "freeze", "drain", "join")
MOST, LEAST = 5, 3  # workers; of those that train, lest nobody is left that has the state
FORMING_SECONDS = 0.04  # less than these workers take from the manager's decision to their next iteration

pytestmark = [pytest.mark.slow, pytest.mark.ci]


class Faults:
    """Faults at random moments of a run.

    Args:
        run: The run, whose first three workers have been started.
        seed: Of the moments and of what happens at each.
        names: The first workers, one for each letter.
        shard_size: Workers, at least, that share one copy of the parameters, of which at least one is left
            whole; None where each has a copy.
    """

    def __init__(self, run, client, seed, names, shard_size=None, kinds=KINDS):
        self.happened = []
        self.live = list(names)
        self._run = run
        self._client = client
        self._chance = random.Random(seed)
        self._names = iter(NAMES[len(names) :])
        self._shard_size = shard_size
        self._kinds = kinds
        self._frozen = {}  # by name, when they thaw

    def reached(self):
        """Return the furthest iteration that a worker has begun which is not frozen."""
        return self._run.reached([name for name in self.live if name not in self._frozen])

    def happen(self, count, wait_until):
        """Let so many faults happen, each once the job has gone on after the one before."""
        while len(self.happened) < count:
            kind = self._chance.choice(self._kinds)
            here = self.reached()
            training = [n for n in self.live if self._trains(n) and self._run.seen(n)[-1][1] >= here - 1]
            if kind == "join":
                if len(self.live) == MOST + (self._shard_size is not None) or not self._join():
                    continue
            elif kind == "kill while forming":
                if not self._kill_while_forming(wait_until):
                    continue
            elif len(training) < LEAST or (kind != "drain" and not self._has_copies(training)):
                wait_until(self._has_grown(here), "the job to go on")
                continue
            else:
                getattr(self, f"_{kind}")(self._chance.choice(training))
            self.happened.append(kind)
            wait_until(self._has_grown(here + self._chance.randrange(12)), "the job to go on")
        for name in list(self._frozen):
            self._thaw(name)
        here = self.reached()
        wait_until(
            lambda: all(self._run.reached(name) > here for name in self.live), "all to train who are left"
        )

    def _trains(self, name):
        return name not in self._frozen and bool(self._run.seen(name))

    def _has_copies(self, training):
        """Return whether these have formed a group of all, in which each has what another one has, too."""
        sizes = {self._run.seen(name)[-1][5] for name in training}
        if self._shard_size is None:
            return True
        return sizes == {len(training)} == {len(self.live)} and mesh_shape(*sizes, self._shard_size)[0] > 1

    def _has_grown(self, iteration):
        def has_grown():
            for name in [name for name, at in self._frozen.items() if at < time.monotonic()]:
                self._thaw(name)
            return self.reached() > iteration

        return has_grown

    def _join(self):
        """Start one more worker, if there is a letter left for its name, and return its name."""
        name = next(self._names, None)
        if name is not None:
            self.live.append(name)
            self._run.start(name)
        return name

    def _kill_while_forming(self, wait_until):
        """Let a worker join, kill it or another, and return whether they were still forming their group."""

        def attempt_of_all():
            summary = self._client.status("default").summary
            return summary.group_size == len(self.live) and summary.attempt

        wait_until(attempt_of_all, "a group of all who are left")
        assert self._join()
        attempt = wait_until(attempt_of_all, "the members of the next group")
        time.sleep(self._chance.uniform(0, FORMING_SECONDS))
        name = self._chance.choice(self.live)
        self._kill(name)
        return all(self._run.seen(other)[-1:] < [(attempt,)] for other in (name, *self.live))

    def _kill(self, name):
        self.live.remove(name)
        self._run.kill(name)

    def _drain(self, name):
        self.live.remove(name)
        self._client.drain("default", name)

    def _freeze(self, name):
        self._frozen[name] = time.monotonic() + self._chance.uniform(*SECONDS_FROZEN)
        self._run.freeze(name)

    def _thaw(self, name):
        del self._frozen[name]
        self._run.thaw(name)


@pytest.mark.parametrize(
    ("seed", "count", "manager", "script"),
    [
        pytest.param(2, 60, (), (), marks=pytest.mark.release),
        pytest.param(3, 60, ("--lookahead", "1"), (), marks=pytest.mark.release),
        pytest.param(4, 60, (), ("--find-unused",), marks=pytest.mark.release),
        pytest.param(5, 60, (), ("--static-graph", "--loading", "2"), marks=pytest.mark.release),
    ],
)
def test_faults_at_random_do_not_change_the_parameters(tmp_path, wait_until, seed, count, manager, script):
    """Whoever is there at the end has the same bits, and those of one process to rounding."""
    ended, iterations, first = trained_under_faults(tmp_path, wait_until, seed, count, manager, script)
    check_equal_to_one_process(ended, first, iterations, most=1e-10)


@pytest.mark.parametrize(
    ("seed", "count", "manager", "script"),
    [
        (6, 6, (), ()),
        pytest.param(7, 60, (), ("--loading", "2"), marks=pytest.mark.release),
        pytest.param(8, 60, ("--lookahead", "1"), ("--find-unused",), marks=pytest.mark.release),
    ],
)
def test_with_exact_sums_faults_at_random_change_no_bit(tmp_path, wait_until, seed, count, manager, script):
    """They are those of one worker without a fault, also with batch normalisation and dropout."""
    exact, script = (*manager, "--exact"), (*script, *NORM)
    ended, iterations, first = trained_under_faults(tmp_path, wait_until, seed, count, exact, script)
    name = NAMES[first]
    assert bits(ended) == bits(trained_calmly(tmp_path / "calm", wait_until, name, iterations, exact, script))


@pytest.mark.parametrize(
    ("seed", "count", "manager"),
    [
        (9, 4, ()),
        pytest.param(10, 60, (), marks=pytest.mark.release),
        pytest.param(11, 60, ("--lookahead", "1"), marks=pytest.mark.release),
    ],
)
def test_faults_at_random_do_not_change_copies_of_shards(tmp_path, wait_until, seed, count, manager):
    """No more than one worker at once, of those that have copies of shards, dies or is frozen."""
    script = ("--shard-size", "2", "--clip", "0.5")
    ended, iterations, first = trained_under_faults(
        tmp_path, wait_until, seed, count, manager, script, "abcd", shard_size=2
    )
    check_equal_to_one_process(ended, first, iterations, most=1e-10, clip=0.5)


@pytest.mark.parametrize("count", [3, pytest.param(30, marks=pytest.mark.release)])
def test_kills_while_a_group_forms_do_not_change_the_parameters(tmp_path, wait_until, count):
    """Newcomers die on their way into the group, or others while it takes a newcomer in."""
    ended, iterations, first = trained_under_faults(
        tmp_path, wait_until, count, count, (), (), kinds=("kill while forming",)
    )
    check_equal_to_one_process(ended, first, iterations, most=1e-10)


def trained_under_faults(
    folder, wait_until, seed, count, manager, script, names="abc", *, shard_size=None, kinds=KINDS
):
    """Train under faults; what all have in the end, the iterations, and the parameters' seed."""
    with (
        manager_process("--workers", str(len(names)), *MANAGER, *manager) as address,
        Run(folder, address, wait_until, *PAUSE, *script) as run,
        contextlib.closing(ManagerClient(address)) as client,
    ):
        run.start(names)
        run.reaches("a", 10)
        first = first_seed(run, names)
        faults = Faults(run, client, seed, names, shard_size, kinds)
        faults.happen(count, wait_until)
        ended, iterations = run.end_all(faults.live)
        assert len(set(map(bits, ended))) == 1
        return ended[0], iterations, first

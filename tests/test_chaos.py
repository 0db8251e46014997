"""What `evenpace chaos` needs before and after a run: settings, faults by seed, ledgers that are read."""

import itertools
import os
import tempfile
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsize_manager.plan import JobSpec, permutation
from evenpace.chaos import checks, clocks
from evenpace.chaos.cluster import Cluster
from evenpace.chaos.errors import NotPossibleHereError
from evenpace.chaos.history import Course, Journal, Rewind, Step, read_ledger
from evenpace.chaos.run import run
from evenpace.chaos.schedule import KINDS, Sites, schedule
from evenpace.chaos.settings import Settings

SPEC = JobSpec(20, 8, seed=3)  # batches of 8, 8 and 4
SITES = Sites(
    {"worker": ("w0", "w1", "w2"), "shard": ("ps-0",), "manager": ("manager",)}, ("w0>ps-0",), ("ps-0",)
)


def step(iteration, attempt=0, cut=3):
    """A whole step: its batch in two slices."""
    _, start, total = SPEC.batch(iteration)
    return Step(iteration, attempt, ((start, cut, "w0"), (start + cut, total - cut, "w1")))


def course(*entries, every=5):
    """What a ledger of these comes to."""
    made = Course("ps-0", every)
    for entry in entries:
        made.add(entry)
    return made


def journals(made, without=()):
    """Journals of workers that did what a course says."""
    found = {name: Journal(name) for name in ("w0", "w1")}
    for one in made.steps:
        order = permutation(SPEC, SPEC.batch(one.iteration)[0])
        for start, count, worker in one.slices:
            crc = zlib.crc32(order[start : start + count].tobytes())
            if (one.iteration, worker) not in without:
                found[worker].computed[one.attempt, one.iteration] = [(start, count, crc)]
    return found


@given(st.integers(0, 2**32), st.lists(st.sampled_from(list(KINDS)), min_size=1, unique=True))
def test_faults_follow_from_the_seed(seed, kinds):
    """The same seed gives the same faults, of the kinds that were asked for, in order."""
    twice = [list(itertools.islice(schedule(seed, kinds, SITES, 2.0), 20)) for _ in range(2)]
    assert twice[0] == twice[1]
    times = [fault.at for fault in twice[0]]
    assert times == sorted(times)
    for fault in twice[0]:
        low, high = KINDS[fault.kind].seconds
        assert fault.kind in kinds
        assert low <= fault.seconds <= high
        assert fault.targets


@given(
    st.integers(0, 2**32), st.lists(st.sampled_from(list(KINDS)), min_size=1, unique=True), st.floats(1, 90)
)
def test_each_kind_comes_in_the_first_half(seed, kinds, seconds):
    """However short a run is, a kind that is asked for is not left out by chance."""
    faults = schedule(seed, kinds, SITES, 5.0, seconds)
    assert {fault.kind for fault in faults if fault.at < 0.51 * seconds} == set(kinds)


def test_every_target_comes():
    """In a run that is long enough; and some faults come at the same moment."""
    faults = list(schedule(1, list(KINDS), SITES, 5.0, 1800.0))
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.targets[0] for fault in faults if fault.kind == "kill"} == {
        "w0",
        "w1",
        "w2",
        "ps-0",
        "manager",
    }
    assert len({fault.at for fault in faults}) < len(faults)
    assert len(faults) > 300


def test_wrong_settings_are_refused():
    """What is wrong is named."""
    with pytest.raises(ValueError, match="faults flood: there are kill"):
        Settings(1, 0, ("flood", "kill"))
    with pytest.raises(ValueError, match="minutes 0: must be above 0"):
        Settings(0, 0)
    with pytest.raises(ValueError, match="give at least one of kill"):
        Settings(1, 0, ())


def test_a_run_says_how_to_have_the_same_faults_again():
    """With the kinds that were named, if any were."""
    assert Settings(0.5, 7, ("kill", "cut")).command == (
        "evenpace chaos --minutes 0.5 --seed 7 --faults kill,cut --workers 5 --shards 2"
    )
    assert Settings(0.5, 7).command == "evenpace chaos --minutes 0.5 --seed 7 --workers 5 --shards 2"


def test_a_kind_that_is_not_possible_here_is_left_out_unless_it_is_named(tmp_path, monkeypatch):
    """Whoever names it wants it to fire: there is no run without it, and no file of one."""
    monkeypatch.setattr(clocks, "_PLACES", ())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # lest this process gets mounts of its own
    (tmp_path / "cluster").mkdir()
    with Cluster(Settings(1, 0, workers=1, shards=1), tmp_path / "cluster") as cluster:
        assert cluster.kinds == [kind for kind in KINDS if kind not in ("disk", "clock")]
    assert cluster.skipped == {
        "disk": "no file systems of our own: it takes root",
        "clock": "no libfaketime here: install Debian's `faketime`",
    }
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "run"))
    with pytest.raises(NotPossibleHereError, match=r"^faults clock: no libfaketime here"):
        run(Settings(1, 0, ("kill", "clock")), None)
    assert list((tmp_path / "run").iterdir()) == []


def test_a_faultless_course_has_no_violation():
    """Steps in order, a rewind to a checkpoint, and the same again."""
    made = course(*map(step, range(7)), Rewind(1, 5), *(step(i, 1, cut=2) for i in range(5, 9)))
    assert not list(checks.all_there([made, made], 9))
    assert not list(checks.exactly_once(made, SPEC))
    assert not list(checks.journals_agree(journals(made).values(), [made], SPEC))
    assert (made.redone, made.rewinds, made.extent) == (2, 1, {0: 7, 1: 9})


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([step(0), step(2)], "step 2 in attempt 0, where step 1"),
        ([step(0), step(0)], "step 0 in attempt 0, where step 1"),
        ([step(0), step(1, 1)], "step 1 in attempt 1, where step 1 in attempt 0"),
        ([*map(step, range(7)), Rewind(1, 4)], "updates from 4 to 7 were taken back, to no checkpoint"),
        ([step(0), Rewind(1, 3)], "rewound to version 3"),
        ([step(0), Rewind(1, 1), Rewind(1, 0)], "rewound to version 0 in attempt 1"),
    ],
)
def test_a_course_that_contradicts_itself_is_seen(entries, said):
    """Gaps, steps taken twice, and updates that are not kept."""
    assert said in course(*entries).violations[0]


@pytest.mark.parametrize(
    ("slices", "said"),
    [
        (((0, 3, "w0"), (4, 4, "w1")), "w1 at 4, where 3 was due"),
        (((0, 4, "w0"), (3, 5, "w1")), "w1 at 3, where 4 was due"),
        (((0, 3, "w0"), (3, 3, "w1")), "iteration 0 ends at 6, not at 8"),
    ],
)
def test_samples_lost_or_used_twice_are_seen(slices, said):
    """In a step, and so in its epoch."""
    made = course(Step(0, 0, slices), step(1), step(2))
    found = list(checks.exactly_once(made, SPEC))
    assert said in found[0]
    assert "samples not used exactly once" in found[-1]


def test_shards_that_differ_are_seen():
    """One is behind, or has another attempt's step."""
    one = course(step(0), step(1))
    assert "1 steps at the end, not 2" in next(checks.all_there([one, course(step(0))], 2))
    other = course(step(0), Rewind(1, 1), step(1, 1))
    assert "attempt 0, ps-0 that of attempt 1" in next(checks.all_there([one, other], 2))


def test_what_no_worker_computed_is_seen():
    """A ledger names a worker whose journal knows nothing of it, or that had other samples."""
    made = course(step(0), step(1))
    found = list(checks.journals_agree(journals(made, [(1, "w1")]).values(), [made], SPEC))
    assert found == ["ps-0: iteration 1 has 11 to 16 from w1, which computed []"]
    wrong = journals(made)
    wrong["w0"].computed[0, 1] = [(8, 3, 0)]
    assert "w0: iteration 1: wrong samples" in next(checks.journals_agree(wrong.values(), [made], SPEC))


def test_an_update_that_only_a_worker_knows_is_seen():
    """A worker had parameters of a version that a shard never reached."""
    made = course(step(0), step(1))
    told = journals(made)
    told["w0"].reached = [[(0, 1), (0, 2)]]
    assert not list(checks.journals_agree(told.values(), [made], SPEC))
    told["w0"].reached = [[(0, 3), (0, 2)]]
    found = list(checks.journals_agree(told.values(), [made], SPEC))
    assert "w0 has version 3 of attempt 0, in which ps-0 had 2 at most" in found
    assert "w0: version 2 in attempt 0 after (0, 3)" in found


def test_the_managers_records_are_checked():
    """Batches that do not sum up, and iterations out of order."""
    part = {"batch_size": 4}
    record = {"iteration": 0, "total": 8, "workers": {"w0": part, "w1": part}}
    assert not list(checks.history_agrees([record, {**record, "iteration": 1}], 2, SPEC))
    assert len(list(checks.history_agrees([record, record], 2, SPEC))) == 1
    assert len(list(checks.history_agrees([{**record, "workers": {"w0": part}}], 2, SPEC))) == 1


def test_parameters_that_differ_are_seen():
    """Beyond rounding, or by a NaN, or in their number."""
    values = np.array([1.0, -2.0])
    assert not list(checks.parameters_equal("it", values, values + 1e-10, 2.0))
    for other in (values + 1e-8, values * np.nan, values[:1]):
        assert len(list(checks.parameters_equal("it", other, values, 2.0))) == 1


def test_a_line_that_a_kill_left_unfinished_is_passed_over(tmp_path):
    """At the end of a file, or where its writer was started again."""
    path = tmp_path / "ledger"
    path.write_text(
        '{"iteration":0,"attempt":0,"slices":[[0,8,"w0"]]}\n{"iter\n{"attempt":0,"restored":0}\n'
        '{"attempt":1,"rewound":1}\n{"iter'
    )
    assert list(read_ledger([path])) == [Step(0, 0, ((0, 8, "w0"),)), Rewind(1, 1)]

"""Parts of `evenpace lab chaos` before and after a run: settings, faults by seed, reading of ledgers."""

import itertools
import os
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.chaos import clocks
from lab.chaos.chaos_cluster import ChaosCluster
from lab.chaos.chaos_run import run
from lab.chaos.config import ChaosConfig
from lab.chaos.errors import NotPossibleHereError
from lab.chaos.fault_schedule import KINDS, Sites, kinds_with, schedule, touched
from lab.chaos.ledgers import Journal, Rewind, Step, ledger_of, read_ledger

WORKERS, SERVICES = ("w0", "w1", "w2"), ("manager", "ps-0", "ps-1")
SITES = Sites(
    {"worker": WORKERS, "shard": SERVICES[1:], "manager": SERVICES[:1]},
    tuple(f"{worker}>{service}" for worker in WORKERS for service in SERVICES),
    ("ps-0",),
    ("guest0", "guest1"),
    SERVICES[:2],
)


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
    """A kind that is asked for is not left out by chance, in however short a run."""
    faults = schedule(seed, kinds, SITES, 5.0, seconds)
    assert {fault.kind for fault in faults if fault.at < 0.51 * seconds} == set(kinds)


def test_what_comes_with_deterministic_sums_befalls_no_shard():
    """All of it can befall the manager and the links to shards, which are all that there is."""
    links = tuple(f"{worker}>{shard}" for worker in WORKERS for shard in SERVICES[1:])
    sites = Sites({"manager": ("manager",)}, links, ("manager",), writes=("manager",))
    kinds = ChaosConfig(deterministic=True).wanted
    assert {fault.kind for fault in schedule(0, kinds, sites, 5.0, 60.0)} == set(kinds)


@pytest.mark.ci
def test_every_target_comes():
    """A run that is long enough has every target, and some faults at the same moment."""
    faults = list(schedule(1, list(KINDS), SITES, 5.0, 1800.0))
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.targets[0] for fault in faults if fault.kind == "kill"} == {
        "w0",
        "w1",
        "w2",
        "ps-0",
        "ps-1",
        "manager",
        *SITES.guests,
    }
    assert targets("join") == set(SITES.guests)
    assert targets("foreign-state") == {f"{a}>{b}" for a, b in itertools.permutations(SERVICES, 2)}
    assert targets("bounds") == targets("batch-size") == set(WORKERS)
    assert targets("bit-flip") == targets("lost-file") == set(SERVICES[1:])
    assert targets("state-bit-flip") == {"manager"}
    assert targets("drain") == {*WORKERS, *SITES.guests}
    assert len({fault.at for fault in faults}) < len(faults)
    assert len(faults) > 300


def targets(kind, seconds=1e4):
    """Return the first targets of the faults of a kind."""
    return {fault.targets[0] for fault in schedule(1, [kind], SITES, 5.0, seconds)}


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        (("kill", "ps-0"), ("freeze", "ps-0"), True),
        (("foreign-state", "ps-1>ps-0"), ("kill", "ps-0"), True),
        (("state-bit-flip", "manager"), ("disk", "manager"), True),
        (("failing-writes", "manager"), ("kill", "manager"), True),
        (("impostor", "w0"), ("cut", "w0>manager"), True),
        (("black-hole", "w0,w1>ps-0"), ("cut", "w1>ps-0"), True),
        (("black-hole", "w0,w1>ps-0"), ("cut", "w1>ps-1"), False),
        (("rank-partition", "w0|w1,w2"), ("rank-black-hole", "w2|w3"), True),
    ],
)
def test_faults_keep_away_from_what_others_befall(one, other, meet):
    """Two faults touch the same thing or not, whichever comes first."""
    assert bool(touched(*one) & touched(*other)) == meet
    assert touched(*one) & touched(*one)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"link_mib": 0}, "link_mib 0: must be above 0"),
        (
            {"kinds": ("kill", "lost-file", "bit-flip"), "deterministic": True},
            "faults bit-flip, lost-file: befall shards",
        ),
        ({"kinds": ("kill", "join")}, "faults join: do not come with parameter-server"),
        ({"kinds": ("bounds", "batch-size"), "exact": True}, "faults batch-size, bounds: change batches"),
        (
            {"kinds": ("batch-size",), "sizer": "schedule"},
            "faults batch-size: come with sizer fixed, but schedule chooses",
        ),
        ({"deterministic": True, "exact": True}, "deterministic and exact: give one of them"),
        ({"scale_batch": True, "sizer": "schedule"}, "scale_batch: .*comes with sizer fixed, but schedule"),
    ],
)
def test_wrong_settings_are_refused(settings, said):
    """The error names the wrong value, or what does not go with the others."""
    with pytest.raises(ValueError, match=said):
        ChaosConfig(**{"minutes": 1, "seed": 0, **settings})


def test_a_kind_that_is_not_possible_here_is_left_out_unless_it_is_named(tmp_path, monkeypatch):
    """A kind that is named must fire: without it there is no run, and no file of one."""
    monkeypatch.setattr(clocks, "_PLACES", ())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # lest this process gets mounts of its own
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "cluster").mkdir()
    with ChaosCluster(ChaosConfig(1, 0, workers=1, shards=1), tmp_path / "cluster") as cluster:
        kinds = kinds_with("parameter-server")
        assert cluster.kinds == [kind for kind in kinds if kind not in ("disk", "failing-writes", "clock")]
    assert cluster.skipped == {
        "disk": "no file systems of our own: it takes root",
        "failing-writes": "no C compiler here: install Debian's `gcc` and `libc6-dev`",
        "clock": "no libfaketime here: install Debian's `faketime`",
    }
    (tmp_path / "ranks").mkdir()
    all_reduce = ChaosConfig(1, 0, workers=2, exchange="all-reduce")
    with ChaosCluster(all_reduce, tmp_path / "ranks") as cluster:
        assert cluster.skipped["rank-partition"] == "network namespaces need root: run this as root"
        assert cluster.manager.is_loopback
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "run"))
    with pytest.raises(NotPossibleHereError, match=r"^faults clock: no libfaketime here"):
        run(ChaosConfig(1, 0, ("kill", "clock")), None)
    assert list((tmp_path / "run").iterdir()) == []


def test_a_line_that_a_kill_left_unfinished_is_passed_over(tmp_path):
    """An unfinished line may be at the end of a file, or where its writer was started again."""
    path = tmp_path / "ledger"
    path.write_text(
        '{"iteration":0,"attempt":0,"slices":[[0,8,"w0"]]}\n{"iter\n{"attempt":0,"restored":0}\n'
        '{"attempt":1,"rewound":1}\n{"iter'
    )
    assert list(read_ledger([path])) == [Step(0, 0, ((0, 8, "w0"),)), Rewind(1, 1)]


def test_workers_journals_make_a_ledger():
    """A step counts if a member of the attempt took it, and is made of what all members computed."""

    def part(start, count):
        return [(start, count, 0, 0, 0, 8)]

    killed = Journal("w0", {(1, 0): part(0, 4), (1, 1): part(0, 4)}, [[(1, 0), (1, 1)]], [], {(1, 0), (1, 1)})
    left = Journal(
        "w1",
        {(1, 0): part(4, 4), (1, 1): part(4, 4), (2, 1): part(0, 8), (2, 2): part(0, 0)},
        [[(1, 0), (1, 1), (2, 1), (2, 2)]],
        [],
        {(1, 0), (2, 1)},
    )
    assert list(ledger_of([killed, left])) == [
        Rewind(1, 0),
        Step(0, 1, ((0, 4, "w0"), (4, 4, "w1"))),
        Step(1, 1, ((0, 4, "w0"), (4, 4, "w1"))),
        Rewind(2, 1),
        Step(1, 2, ((0, 8, "w1"),)),
    ]

"""What a member leaves undone is redone by the others, and who is silent or late, worked out by hand."""

import math
from dataclasses import replace

import pytest

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.effects import Over
from idl.bounds import Bounds
from idl.endings import FINISHED
from idl.errors import InvalidRequestError
from idl.exchange import FIXED_GROUP
from tests.batchsize_manager.job.driver import Beating, Driver, restored

# -- pieces


def test_pieces_are_in_proportion_to_the_plan():
    """Of 24 missing samples, who has a quarter of the rest does a quarter, who has three does three."""
    driver = Beating("a", "b", "c", total=48, policy="proportional")
    for name, seconds in (("a", 3.0), ("b", 1.0), ("c", 0.75)):
        driver.report(name, 0, seconds)
    assert [driver.count(name) for name in "abc"] == [6, 18, 24]
    driver.report("a", 1)
    driver.report("b", 1)
    driver.job.leave("c", "c", 0.0)

    start = 48
    assert driver.span("a") == (1, start + 24, 6)
    assert driver.span("b") == (1, start + 30, 18)


def test_pieces_keep_within_the_maxima():
    """What is beyond everybody's maximum is given out when a piece comes back."""
    limits = {"a": Bounds(1, 6), "b": Bounds(1, 5)}
    driver = Beating("a", "b", "c", total=30, bounds=limits)
    assert [driver.count(name) for name in "abc"] == [6, 5, 19]
    driver.finish("a", "b")
    driver.join("d")
    driver.job.leave("c", "c", 0.0)
    assert (driver.span("a"), driver.span("b")) == ((0, 11, 6), (0, 17, 5))
    driver.finish("b")
    assert driver.span("b") == (0, 22, 5)
    driver.finish("a")
    assert driver.span("a") == (0, 27, 3)
    driver.finish("a")
    assert driver.next("a") is None
    assert driver.next("d") is None
    driver.finish("b")
    assert driver.iteration("d") == 1
    counts = {name: w.batch_size for name, w in driver.job.history(0, 9)[0].parts.items()}
    assert counts == {"a": 15, "b": 15}


def test_a_report_of_another_place_is_refused():
    """The error says where the worker's part begins."""
    driver = Beating("a", "b", total=30)
    with pytest.raises(
        InvalidRequestError, match="position 3 on in iteration 0, but 'b' has 15 samples from 15"
    ):
        driver.report_part("b", replace(driver.next("b"), start=3))


def test_policies_learn_from_the_parts_that_they_planned():
    """A piece counts in the records, but the speed is that of the worker's own part."""
    driver = Beating("a", "b", "c", total=30, policy="proportional")
    driver.report("a", 0, 1.0)
    driver.report("b", 0, 2.0)
    driver.job.leave("c", "c", 0.0)
    assert [driver.count("a"), driver.count("b")] == [5, 5]
    driver.now = 20.0
    driver.report("a", 0, 9.0)
    driver.report("b", 0, 0.5)
    a, b = (driver.job.history(0, 9)[0].parts[name] for name in "ab")

    assert (a.batch_size, a.batch_processing_time) == (15, 10.0)
    assert (b.batch_size, b.batch_processing_time) == (15, 2.5)
    assert [driver.count("a"), driver.count("b")] == [20, 10]


def test_policies_learn_nothing_from_who_did_a_piece_alone():
    """Of a member whose own part others have done, and that came back to do a piece, no speed is seen."""
    driver = Beating("a", "b", "c", total=30, policy="proportional", report_timeout=1000.0)
    driver.finish("a", "b", "c")
    own = driver.next("b")
    driver.beat("a", "b", "c")
    driver.now = 5.0
    driver.beat("a", "c")
    driver.finish("a", "c")
    driver.tick_at(10.0)
    driver.report_part("b", own)
    assert driver.next("b") is None
    driver.job.leave("c", "c", 10.0)
    assert driver.span("b") == (1, 45, 5)
    driver.report("b", 1, 50.0)
    driver.finish("a")
    sizes = {name: part.batch_size for name, part in driver.job.history(1, 9)[0].parts.items()}
    assert sizes == {"a": 15, "b": 5, "c": 10}
    assert [driver.count("a"), driver.count("b")] == [15, 15]


def test_between_its_pieces_a_worker_waits():
    """Its record's waiting is all of the time from its own part to the end in which it did no work."""
    driver = Beating("a", "b", "c", total=30)
    driver.now = 1.0
    driver.report("a", 0, 1.0, waiting=0.25, communication=0.5)
    driver.now = 2.0
    driver.report("b", 0, 2.0, communication=9.0)
    driver.now = 10.0
    driver.job.leave("c", "c", 10.0)
    driver.next("a"), driver.next("b")
    driver.now = 15.0
    driver.report("a", 0, 3.0, waiting=0.5, communication=0.25)
    driver.now = 17.0
    driver.report("b", 0, 7.0)
    a, b = (driver.job.history(0, 9)[0].parts[name] for name in "ab")

    # From 1 to 15 it worked for 3 s, then it waited until 17; at the parameter server, for 0.25 s before.
    assert (a.batch_size, a.batch_processing_time, a.waiting_time) == (15, 4.0, 0.25 + 11.0 + 2.0)
    assert (b.batch_size, b.batch_processing_time, b.waiting_time) == (15, 9.0, 8.0)

    # Of one of the reports of b it is not known how much was communication.
    assert a.communication_time == 0.75
    assert math.isnan(b.communication_time)


def test_communication_is_no_more_than_the_processing_of_the_batch():
    """Whatever a worker's two clocks say."""
    driver = Driver("a")
    driver.report("a", 0, 2.0, communication=2.5)
    assert driver.job.history(0, 9)[0].parts["a"].communication_time == 2.0


def test_jobs_that_reduce_gradients_redo_nothing():
    """Their process group is broken anyway: the iteration is over without the slice."""
    driver = Beating("a", "b", "c", total=30, exchange=FIXED_GROUP)
    driver.finish("a", "b", "c")
    driver.next("a")
    driver.finish("a", "c")
    driver.job.leave("b", "b", 0.0)
    assert driver.span("a") == (2, 60, 15)
    driver.job.recover("a", "a", 0, 0.0)
    assert driver.job.attempts.failure == "a cannot go on; restart the job from its checkpoint"


def test_a_death_fails_a_job_whose_group_stays():
    """The others may wait for good in a reduction: they are told, by their heartbeats."""
    driver = Beating("a", "b", "c", total=30, exchange=FIXED_GROUP)
    driver.finish("a", "b", "c")
    driver.job.disconnect("b", "b", 0.0)
    driver.job.tick(0.9)
    assert driver.job.attempts.failure is None
    driver.job.tick(1.1)
    assert driver.job.attempts.failure == (
        "b died: its connection broke, and the others cannot go on without it"
    )


# -- silence


def silent_b(**config):
    """Three workers that have sent heartbeats; b is silent since then, the others have reported."""
    driver = Beating("a", "b", "c", total=30, report_timeout=1000.0, **config)
    for name in "abc":
        driver.next(name)
    driver.beat("a", "b", "c")
    driver.now = 5.0
    driver.beat("a", "c")
    driver.finish("a", "c")
    return driver


def test_who_is_silent_while_others_wait_is_suspended():
    """After 10 s without a heartbeat others do its part, and it is not planned for; but it stays a member."""
    driver = silent_b()
    driver.tick_at(9.9)
    assert driver.next("a") is None
    driver.tick_at(10.0)
    assert driver.last_events(1) == ["b is silent; the others do its part meanwhile"]
    standings = [(standing.state, standing.silence) for standing in driver.job.members.standings(12.0)]
    assert standings == [("working", 7.0), ("silent", 12.0), ("working", 7.0)]
    assert driver.next("b") is None
    driver.finish("a", "c")
    assert driver.last_events(2) == [
        "a is given 5 samples of iteration 0, from position 10 on, that others have left",
        "c is given 5 samples of iteration 0, from position 15 on, that others have left",
    ]
    assert (driver.span("a"), driver.span("c")) == ((1, 30, 15), (1, 45, 15))
    assert list(driver.job.members) == ["a", "b", "c"]
    assert driver.next("b") is None


def test_who_sends_heartbeats_is_not_suspended():
    """However slow it is; nor who has neither sent nor promised one."""
    driver = Beating("a", "b", "c", total=30, report_timeout=1000.0)
    driver.beat("a", "b")
    driver.finish("a")
    for now in range(0, 900, 2):
        driver.now = float(now)
        driver.beat("a", "b")
        driver.tick_at(driver.now)
    assert [driver.iteration("b"), driver.iteration("c")] == [0, 0]
    assert driver.next("a") is None


@pytest.mark.parametrize("restarted", [False, True])
def test_who_has_promised_heartbeats_is_suspended_before_its_first(restarted):
    """It freezes right after it has joined, or after the manager was started again."""
    driver = Beating("a", "b", total=30, promising="b", report_timeout=1000.0)
    if restarted:
        driver.job = restored(driver.job, JobConfig(workers=2, report_timeout=1000.0), now=0.0)
        for name in "ab":
            driver.rewind(name, 1, 0)
    driver.beat("a")
    driver.now = 5.0
    driver.finish("a")
    driver.tick_at(9.9)
    assert driver.next("a") is None
    driver.tick_at(10.0)
    assert driver.last_events(1) == ["b is silent; the others do its part meanwhile"]
    assert driver.span("a") == (0, 15, 15)


@pytest.mark.parametrize(
    ("options", "heard"),
    [({"heartbeat": 0.0}, ""), ({}, ""), ({"bounds": {"a": Bounds(1, 20)}}, "ab")],
    ids=["no heartbeats are wanted", "nobody was heard of", "the batch is too large without it"],
)
def test_nobody_is_suspended_whose_silence_says_nothing(options, heard):
    """It is awaited until the report time-out."""
    driver = Beating("a", "b", total=30, promising="ab", report_timeout=1000.0, **options)
    driver.beat(*heard)
    driver.finish("a")
    driver.tick_at(500.0)
    assert driver.next("a") is None
    assert driver.iteration("b") == 0


def test_who_is_silent_with_a_part_of_one_that_is_back_is_suspended():
    """Who came back when another had got its part waits for it, as those do who have reported theirs."""
    driver = Beating("a", "b", total=16)
    driver.beat("a", "b")
    driver.report("a", 0)
    driver.beat("a")
    driver.now += 10.0
    driver.beat("a")
    driver.job.tick(driver.now)
    assert driver.span("a") == (0, 8, 8)
    driver.report("b", 0)
    assert driver.last_events(1) == ["b is back"]
    assert driver.span("b") is None
    driver.now += 10.0
    driver.beat("b")
    driver.job.tick(driver.now)
    assert driver.last_events(1) == ["a is silent; the others do its part meanwhile"]
    assert driver.span("b") == (0, 8, 8)


# -- members that are too few


def tight(*names, total=400, **config):
    """Workers of which all are needed for a batch."""
    return Beating(*names, total=total, bounds=dict.fromkeys(names, Bounds(1, 110)), **config)


def test_a_death_among_workers_that_are_all_needed_is_waited_with():
    """What it leaves is done in pieces; nothing more is planned before another has come."""
    driver = tight("a", "b", "c", "d", reconnect_grace=1.0)
    driver.finish("a", "b", "c")
    driver.job.disconnect("d", "d", 1.0)
    driver.tick_at(2.1)
    lack = "the workers can take 330 samples together at most, less than a batch of 400"
    assert f"{lack}: others are awaited for 600 s" in driver.job.outbox.events
    driver.finish("a", "b", "c")
    assert [record.iteration for record in driver.job.history(0, 9)] == [0]
    assert (driver.next("a"), driver.job.attempts.failure, driver.job.state) == (None, None, "gathering")
    driver.now = 3.0
    driver.join("e", bounds=Bounds(1, 110))
    assert [driver.count(name) for name in "abce"] == [100] * 4
    assert driver.job.state == "running"
    driver.tick_at(1000.0)
    assert driver.job.attempts.failure is None


def test_others_are_not_awaited_for_ever():
    """The job fails once the time is over, and says what those that were left could not do."""
    driver = tight("a", "b", keep=60.0, total=200)
    driver.now = 5.0
    driver.job.leave("b", "b", driver.now)
    driver.tick_at(64.9)
    assert driver.job.attempts.failure is None
    driver.tick_at(65.0)
    said = "the workers can take 110 samples together at most, less than a batch of 200"
    assert driver.job.attempts.failure == f"{said}, and no other has come for 60 s"


def test_who_comes_back_when_the_others_have_finished_does_not_fail_for_lack_of_others():
    """It cannot take a batch alone, and nobody else has to: the job has ended well."""
    driver = tight("a", "b", "c", promising="abc", keep=60.0, total=200, silence=10.0)
    driver.now = 11.0
    driver.beat("a", "b")
    driver.tick_at(11.0)
    assert driver.job.members.by_name["c"].suspended
    driver.job.leave("a", "a", driver.now)
    driver.job.leave("b", "b", driver.now)
    driver.beat("c")
    driver.tick_at(70.9)
    assert driver.job.take_effects().over is None
    driver.beat("c")
    driver.tick_at(71.0)
    assert driver.job.take_effects().over == Over(FINISHED, failed=False)
    assert driver.job.answer("c", "c").released == FINISHED


# -- silence that lasts


def test_who_stays_silent_is_taken_out():
    """A suspended member goes after the time of absence since it was last heard of."""
    driver = silent_b(absence=50.0)
    driver.tick_at(10.0)
    driver.tick_at(49.9)
    assert list(driver.job.members) == ["a", "b", "c"]
    driver.tick_at(50.0)
    assert list(driver.job.members) == ["a", "c"]
    assert "b died: nothing was heard of it for 50 s" in driver.job.outbox.events


def test_deadlines_follow_the_iterations():
    """A member has ten typical iterations to report, if that is longer than the time-out."""
    driver = Beating("a", "b", report_timeout=100.0)
    for k in range(5):
        driver.now = 30.0 * (k + 1)
        driver.finish("a", "b")
    driver.finish("a")
    driver.next("b")
    driver.tick_at(449.9)
    assert list(driver.job.members) == ["a", "b"]
    driver.tick_at(450.0)
    assert list(driver.job.members) == ["a"]


@pytest.mark.parametrize("total", [30, 3])
def test_a_piece_comes_with_time_to_do_it(total):
    """Who has waited for long is not late at once; of one missing sample, others long done wait for it."""
    driver = Beating("a", "b", "c", total=total, report_timeout=100.0)
    driver.finish("a", "b")
    driver.tick_at(99.0)
    driver.job.leave("c", "c", 99.0)
    late, *others = (name for name in "ab" if driver.next(name))
    driver.finish(*others)
    driver.tick_at(198.9)
    assert list(driver.job.members) == ["a", "b"]
    driver.tick_at(199.0)
    assert list(driver.job.members) == [name for name in "ab" if name != late]


def test_a_piece_is_late_where_who_waits_for_it_had_been_silent_itself():
    """Who comes back and finds that another has got its part waits for that, as long as anybody would."""
    driver = Beating("a", "b", total=16, silence=10.0, report_timeout=100.0, promising=("b",))
    driver.tick_at(10.0)
    driver.finish("a")
    driver.tick_at(11.0)
    assert driver.span("a") == (0, 8, 8)  # which was b's
    driver.now = 20.0
    driver.report("b", 0)
    driver.beat("b")
    driver.tick_at(110.9)
    assert list(driver.job.members) == ["a", "b"]
    driver.beat("b")
    driver.tick_at(111.0)
    assert list(driver.job.members) == ["b"]


def test_who_was_silent_waits_for_the_others_from_its_return_on():
    """Also where all who had reported have left, and another has done its part."""
    driver = Beating("a", "b", "c", total=30, report_timeout=100.0)
    driver.beat("a", "b", "c")
    late, _ = driver.next("b"), driver.next("c")
    driver.finish("a")
    driver.now = 5.0
    driver.beat("a", "c")
    driver.tick_at(10.0)
    assert driver.span("a") == (0, 10, 5)  # of b's
    driver.finish("a")
    driver.now = 20.0
    driver.report_part("b", late)
    driver.job.leave("a", "a", 20.0)
    for now, members in ((119.9, ["b", "c"]), (120.0, ["b"])):
        driver.beat("b", "c")
        driver.tick_at(now)
        assert list(driver.job.members) == members


# -- pieces that nobody reports


@pytest.mark.parametrize(("seconds", "more"), [(1.0, 100.0), (50.0, 500.0)])
def test_a_piece_is_late_also_where_nobody_waits_for_it(seconds, more):
    """It has the time-out, or ten times as long as a part as large has taken; the log says what it was.

    Who pulls in place of doing it waits for itself at the shards.
    """
    driver = Beating("a", "b", total=30, report_timeout=100.0)
    driver.report("a", 0, seconds)
    driver.now = 60.0
    driver.job.leave("b", "b", 60.0)
    assert driver.span("a") == (0, 15, 15)
    driver.beat("a")
    driver.tick_at(60.0 + more - 0.1)
    assert list(driver.job.members) == ["a"]
    driver.tick_at(60.0 + more)
    assert not driver.job.members
    assert driver.last_events(1) == [
        "a did not report in time the 15 samples of iteration 0, from position 15 on, that it was given "
        "since another worker had left them"
    ]

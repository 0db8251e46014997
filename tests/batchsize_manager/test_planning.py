"""Forecasts from profiles: the best split, an even one, one kind of device alone, and the fastest of them."""

import json

import pytest

from batchsize_manager.learning.profiles import Profile, Step
from batchsize_manager.planning import recommend
from batchsize_manager.planning_config import Task
from evenpace.reports import files
from tests.evenpace.commands import invoke


def linear(device, per_sample, fixed=0.0, limit=None, micro_batch=None, sizes=(8, 64, 512)):
    """Return a profile of a device whose time grows in a line."""
    steps = tuple(Step(size, fixed + per_sample * size) for size in sizes)
    return Profile(device, "train.py", steps, micro_batch, limit)


FAST, SLOW = linear("V100 16GB", 0.001), linear("P100 16GB", 0.004)


def samples(forecast):
    """Return the samples of each device."""
    return [share.samples for share in forecast.shares]


def test_unlike_devices_take_equally_long():
    """A device four times as fast gets four times the samples, and all take equally long."""
    found = recommend([(FAST, 2), (SLOW, 2)], Task(1000))

    assert samples(found.best) == [400, 400, 100, 100]
    assert found.best.seconds == pytest.approx(0.4)
    assert found.best.throughput == pytest.approx(2500)
    assert samples(found.even) == [250] * 4
    assert found.even.seconds == pytest.approx(1.0)
    assert {kind: alone.seconds for kind, alone in found.alone.items()} == {
        "V100 16GB": pytest.approx(0.5),
        "P100 16GB": pytest.approx(2.0),
    }


def test_no_more_devices_are_planned_for_than_there_are_micro_batches(tmp_path):
    """The manager would refuse them; those that are left out cost no communication."""
    task = Task(60, micro_batch=32, communication=0.001)
    found = recommend([(FAST, 3)], task)
    assert samples(found.best) == [30, 30]
    assert (found.best.left_out, found.even.left_out) == (1, 1)
    assert found.best.seconds == pytest.approx(0.032 + 0.001)
    files.write_json(FAST.content(), tmp_path / "fast.json")
    options = ["--total", "60", "--micro-batch", "32", "--profiles", str(tmp_path)]
    result = invoke("plan", *options, "V100=3", columns=200)
    assert "1 of the devices are left out: a batch of 2 micro-batches is too small for more" in result.output


def test_the_fastest_kind_alone_is_recommended_where_it_is_faster():
    """Communication, or a slow device's fixed time, makes fewer devices faster; VirtualFlow's fallback."""
    costly = recommend([(FAST, 2), (SLOW, 2)], Task(1000, communication=0.1))
    assert (costly.fastest_alone, costly.best.seconds) == ("V100 16GB", pytest.approx(0.6))
    assert costly.balanced.seconds == pytest.approx(0.4 + 3 * 0.1)

    late = recommend([(FAST, 2), (linear("P100", 0.004, fixed=0.7), 1)], Task(1000))
    assert samples(late.best) == [500, 500]

    # Even where it is as fast: what would not help is left to others.
    one = recommend([(FAST, 1), (SLOW, 1)], Task(1))
    assert samples(one.best) == [1]


def test_limits_are_kept():
    """No device gets more than fits; a batch that fits into none of the ways is said not to."""
    small = linear("V100", 0.001, limit=512)
    found = recommend([(small, 1), (SLOW, 1)], Task(1000))
    assert samples(found.best) == [512, 488]
    assert found.alone["V100"] is None
    assert found.fastest_alone == "P100 16GB"

    nothing = recommend([(small, 1)], Task(1000))
    assert (nothing.best, nothing.even, nothing.alone) == (None, None, {})


def test_micro_batches_run_in_waves():
    """Any batch fits in micro-batches: as many at once as fit, then the next wave, the last not full."""
    flat = linear("flat", 0.0, fixed=1.0, limit=64, sizes=(8, 64))
    task = Task(1000, micro_batch=16, at_once=8)
    share = recommend([(flat, 1)], task).best.shares[0]
    assert (share.samples, share.micro_batches, share.at_once, share.waves) == (1000, 63, 4, 16)
    assert share.seconds == pytest.approx(16)

    one_by_one = recommend([(flat, 1)], Task(1000, micro_batch=16)).best.shares[0]
    assert (one_by_one.at_once, one_by_one.waves, one_by_one.seconds) == (1, 63, pytest.approx(63))


def test_times_of_jobs_in_micro_batches_are_taken_as_they_are():
    """A profile of micro-batches has the time of any number of them, whatever the device runs at once."""
    found = recommend(
        [(linear("a", 0.001, micro_batch=8), 1), (linear("b", 0.003, micro_batch=8), 1)], Task(96, 8)
    )

    assert samples(found.best) == [72, 24]
    assert [share.micro_batches for share in found.best.shares] == [9, 3]
    assert found.best.shares[0].waves is None


@pytest.mark.parametrize(
    ("profiles", "task", "said"),
    [
        ([linear("a", 1.0, micro_batch=8)], Task(96), "micro_batch None: the profile of 'a' is of .* of 8"),
        ([linear("a", 1.0, micro_batch=8)], Task(96, 4), "micro_batch 4: the profile of 'a' is of .* of 8"),
        (
            [linear("a", 1.0, limit=512)],
            Task(4096, 1024),
            "micro_batch 1024: 'a' can take at most 512 samples",
        ),
        ([linear("a", 1.0, micro_batch=8), FAST], Task(96, 8), "'a' 8, 'V100 16GB' None: must be the same"),
    ],
)
def test_errors_name_the_value(profiles, task, said):
    """Profiles that say nothing of such a task are refused with their device and both sizes."""
    with pytest.raises(ValueError, match=said):
        recommend([(profile, 1) for profile in profiles], task)


# -- the command


def plan(*arguments):
    """Run the command."""
    return invoke("plan", *arguments, columns=120)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the profiles of two devices."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    for profile in (FAST, SLOW):
        files.write_json(profile.content(), folder / f"{profile.device}.json")
    return folder


def test_the_plan_is_printed_and_written(folder, tmp_path):
    """The table has each kind's share; the lines below compare it with an even split and each kind alone."""
    out = tmp_path / "plan.json"
    result = plan("--total", 1000, "--profiles", folder, "v100=2", "P100 16GB=2", "--json", out)

    assert result.exit_code == 0, result.output
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in result.output.splitlines() if "│" in line
    ]
    assert rows == [["V100 16GB", "2", "400", "0.4"], ["P100 16GB", "2", "100", "0.4"]]
    assert "takes 0.4 s: 2500 samples per second" in result.output
    assert "even split over all: 1 s, 2.50 times as long" in result.output
    assert "P100 16GB alone: 2 s, 5.00 times as long" in result.output
    figures = json.loads(out.read_text())
    assert [share["samples"] for share in figures["best"]["shares"]] == [400, 400, 100, 100]
    assert figures["alone"]["V100 16GB"]["seconds"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (["K80"], "device 'K80': must be a part of one profile's device; there are 'P100 16GB', 'V100 16GB'"),
        (["100"], "device '100': must be a part of one profile's device"),
        (["V100=0"], "'0': must be a whole number from 1"),
        (["V100", "V100 16GB=2"], "'V100 16GB' comes twice"),
    ],
)
def test_devices_are_named_by_their_profiles(folder, devices, said):
    """A device of no profile, of several, or given twice is refused with those that there are."""
    result = plan("--total", 64, "--profiles", folder, *devices)

    assert result.exit_code == 1
    assert said in result.output

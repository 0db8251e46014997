"""Profiles: read as they were written, refused with what is wrong, and what policies start from."""

import json
import re

import pytest

from batchsize_manager.learning.profiles import Profile, Step, read_profiles, with_profiles
from evenpace.reports import files
from predictors import DeviceKind

STEPS = (Step(8, 0.5, 0.01, 20, 0.25), Step(16, 0.4, 0.01, 20, 0.5), Step(32, 0.9, 0.01, 20, 0.75))
PROFILE = Profile("a GPU", "train.py", STEPS, micro_batch=8, limit=48)


def test_files_are_read_as_written(tmp_path):
    """A profile comes back from its file as it was, and a folder gives all of its files."""
    files.write_json(PROFILE.content(), tmp_path / "a.json")
    other = Profile("another GPU", "train.py", STEPS[:1])
    files.write_json(other.content(), tmp_path / "b.json")

    assert read_profiles([tmp_path / "a.json"]) == [PROFILE]
    assert read_profiles([tmp_path]) == [PROFILE, other]


def test_times_never_fall():
    """The curve of noisy medians never falls."""
    assert PROFILE.times.seconds == pytest.approx((0.45, 0.45, 0.9))


def test_models_of_kinds_are_replaced():
    """A profile stands for its kind of device, whatever was learned before, of its workers, too."""
    before = {
        "learned": {
            "w0": {"sizes": [1.0]},
            DeviceKind("a GPU"): {"sizes": [2.0]},
            DeviceKind("another"): {"sizes": [3.0]},
        },
        "narx": {"w0": {}},
    }
    models = with_profiles(before, [PROFILE])

    assert models["narx"] == before["narx"]
    assert "w0" not in models["learned"]
    assert models["learned"][DeviceKind("another")] == {"sizes": [3.0]}
    learned = models["learned"][DeviceKind("a GPU")]
    assert (learned["sizes"].tolist(), learned["times"].tolist()) == ([8.0, 16.0, 32.0], [0.5, 0.4, 0.9])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": ""}, "device '': must be a text"),
        ({"micro_batch": 0}, "micro_batch 0: must be a whole number from 1"),
        ({"micro_batch": 5}, "batch_size 8: must be a multiple of the micro-batch, 5"),
        ({"limit": 31}, "limit 31: must be at least the largest batch measured, 32"),
        ({"limit": 31.5}, "limit 31.5: must be a whole number"),
        ({"steps": []}, r"steps of batch sizes \[\]: must be at least one"),
        ({"steps": 3}, "steps 3: must be a list"),
        ({"steps": [7]}, "step with 7: must have batch_size, seconds, and may have spread"),
        ({"steps": [{"batch_size": 8}]}, "step with batch_size: must have batch_size, seconds"),
        ({"steps": [{"batch_size": 8, "seconds": 0}]}, "seconds 0: must be a number above 0"),
        ({"steps": [{"batch_size": 8, "seconds": "1"}]}, "seconds '1': must be a number above 0"),
        ({"steps": [{"batch_size": 8, "seconds": 1, "memory": -1}]}, "memory -1: must be a number from 0"),
        (
            {"colour": "red"},
            "profile with device, .*colour: must have device, script, steps, and may have micro",
        ),
    ],
)
def test_errors_name_file_and_value(tmp_path, change, said):
    """A file that is no profile is refused with its name, what is wrong in it, and what is allowed."""
    file = tmp_path / "bad.json"
    file.write_text(json.dumps({**PROFILE.content(), **change}))

    with pytest.raises(ValueError, match=rf"profile '{re.escape(str(file))}': .*{said}"):
        read_profiles([file])


def test_other_files_are_refused(tmp_path):
    """No JSON, an empty folder and two profiles of one kind of device are refused by name."""
    with pytest.raises(ValueError, match=r"no \.json file in this folder"):
        read_profiles([tmp_path])
    (tmp_path / "bad.json").write_text("no JSON")
    with pytest.raises(ValueError, match=r"bad\.json': Expecting value"):
        read_profiles([tmp_path])
    for name in ("bad.json", "same.json"):
        files.write_json(PROFILE.content(), tmp_path / name)
    with pytest.raises(ValueError, match=r"bad.json' and .*same.json': both are of device 'a GPU'"):
        read_profiles([tmp_path])

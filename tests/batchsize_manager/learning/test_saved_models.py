"""Saved models: files of fitted models."""

import io
import os
import struct
import zipfile
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsize_manager.learning.saved_models import (
    load_models,
    models_file,
    pack_models,
    save_models,
    unpack_models,
)
from predictors import DeviceKind

NAMES = st.text(min_size=1, max_size=8)
KEYS = NAMES | st.text(max_size=8).map(DeviceKind)  # what models were learned of


def plain(models):
    """Return models as nested lists, to be compared."""
    return {
        predictor: {w: {n: a.tolist() for n, a in weights.items()} for w, weights in workers.items()}
        for predictor, workers in models.items()
    }


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(
        NAMES,
        st.dictionaries(
            KEYS,
            st.dictionaries(NAMES, st.lists(st.floats(-1e9, 1e9), max_size=3), min_size=1, max_size=2),
            max_size=3,
        ),
        max_size=3,
    )
)
def test_round_trip(tmp_path_factory, models):
    """Models under any names are read as they were written, but for workers without weights."""
    path = tmp_path_factory.mktemp("models") / "job.npz"
    arrays = {
        predictor: {w: {n: np.array(v) for n, v in weights.items()} for w, weights in workers.items()}
        for predictor, workers in models.items()
    }
    save_models(path, arrays)

    assert plain(load_models(path)) == {name: workers for name, workers in plain(arrays).items() if workers}
    assert os.listdir(path.parent) == ["job.npz"]


def test_models_are_on_the_disk_before_they_replace_others(tmp_path, disk_calls):
    """A loss of power leaves the old file or the new one, whole."""
    path = models_file(tmp_path, "job")
    save_models(path, {"arx": {"w": {"x": np.array([1.0])}}})
    synced, replaced = disk_calls
    assert synced == ("fsync", synced[1], path.stat().st_size)
    assert replaced == ("replace", synced[1], str(path))


def test_a_folder_gives_all_files_and_the_newest_worker(tmp_path):
    """The file that was written last holds for a worker in two files."""
    old, new = tmp_path / "z.npz", tmp_path / "a.npz"
    save_models(old, {"narx": {"w0": {"x": np.array([1.0])}, "w1": {"x": np.array([2.0])}}})
    save_models(new, {"narx": {"w0": {"x": np.array([3.0])}}})
    os.utime(old, (1, 1))

    assert plain(load_models(tmp_path)) == {"narx": {"w0": {"x": [3.0]}, "w1": {"x": [2.0]}}}


def test_a_folder_keeps_the_files_of_the_last_jobs(tmp_path):
    """Other files stay, whatever their age: notes, and somebody's arrays in the same format."""
    models = {"arx": {"w": {"x": np.array([1.0])}}}
    others = [tmp_path / name for name in ("notes.txt", "embeddings.npz", "0.npz")]
    jobs = [models_file(tmp_path, str(number)) for number in range(1005)]
    for path, written in (*((path, 0) for path in others), *((path, n) for n, path in enumerate(jobs))):
        path.write_bytes(b"")
        os.utime(path, (written, written))
    new = models_file(tmp_path, "new")
    save_models(new, models)
    assert set(tmp_path.iterdir()) == {new, *others, *jobs[6:]}


def test_a_jobs_name_may_hold_anything(tmp_path):
    """A job's file lies in the folder, whatever the job's name."""
    path = models_file(tmp_path, "../a/b c")
    save_models(path, {"arx": {"w": {"x": np.array([1.0])}}})

    assert path.parent == tmp_path
    assert load_models(tmp_path)


def test_files_that_hold_no_models_are_refused(tmp_path):
    """No file at all, rubbish, other arrays, objects, and numbers that are not finite: the error names it."""
    with pytest.raises(ValueError, match=f"models '{tmp_path}': no .npz file"):
        load_models(tmp_path)
    for number, content in enumerate((b"", b"rubbish", b"PK\x03\x04 not really")):
        (tmp_path / f"bad-{number}.npz").write_bytes(content)
    np.savez(tmp_path / "other.npz", numbers=np.arange(3))
    np.savez(tmp_path / "objects.npz", **{"narx/w/x": np.array([{}], dtype=object)}, allow_pickle=True)
    save_models(tmp_path / "nan.npz", {"narx": {"w": {"x": np.array([np.nan])}}})

    for name in ("bad-0.npz", "bad-1.npz", "bad-2.npz", "other.npz", "objects.npz", "nan.npz"):
        with pytest.raises(ValueError, match=name):
            load_models(tmp_path / name)


def packed(*entries, compression=zipfile.ZIP_STORED):
    """Return a zip file of names and contents."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as file:
        for name, content in entries:
            file.writestr(name, content)
    return stream.getvalue()


def test_unpacking_takes_no_more_memory_than_was_sent():
    """Zip bombs, and arrays that claim to be longer than they are, are refused before they are read."""
    good = pack_models({"narx": {"w": {"x": np.ones(3)}}})
    assert plain(unpack_models(good)) == {"narx": {"w": {"x": [1.0, 1.0, 1.0]}}}
    zeros = io.BytesIO()
    np.save(zeros, np.zeros(10**6))
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }"
    claims = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    content = packed(("narx/w/x.npy", b"x" * 500))
    longer = content.replace(struct.pack("<II", 500, 500), struct.pack("<II", 2**31, 2**31))
    assert longer != content
    for sent in (
        packed(("narx/w/x.npy", zeros.getvalue()), compression=zipfile.ZIP_DEFLATED),
        packed(("narx/w/x.npy", claims)),
        longer,
        b"rubbish",
    ):
        with pytest.raises(ValueError, match="models that were sent: not a file of saved models"):
            unpack_models(sent)


def test_a_file_of_an_earlier_version_is_read():
    """A file of an earlier version is read, which has each worker's arrays separate, and kinds by a tab."""
    models = {
        "narx": {"w/0": {"x": np.arange(3.0), "y": np.array(2.0)}, DeviceKind("GPU"): {"x": np.array(1.0)}},
        "ema": {"v": {"speed": np.array(1.0)}},
    }

    def named(key):
        return f"kind\t{key}" if isinstance(key, DeviceKind) else key

    stream = io.BytesIO()
    np.savez(
        stream,
        **{
            f"{predictor}/{quote(named(worker), safe='')}/{name}": array
            for predictor, workers in models.items()
            for worker, weights in workers.items()
            for name, array in weights.items()
        },
    )
    assert plain(unpack_models(stream.getvalue())) == plain(models)


@pytest.mark.parametrize(
    ("names", "rows", "said"),
    [
        (b"[1]", 1, "other names"),
        (b'"w"', 1, "other names"),
        (b'["v", "w"]', 1, "other names"),
        (b"{", 1, "Expecting"),
        (b"\xff", 1, "decode"),
        (b"[" * 100_000, 1, "recursion"),
        (b"[" + b",".join([b'""'] * 200_000) + b"]", 200_000, "more than 400000 arrays"),
    ],
    ids=["numbers", "text", "too many", "no JSON", "no UTF-8", "deep", "arrays without end"],
)
def test_lists_of_names_that_make_no_sense_are_refused(names, rows, said):
    """Lists of names that are none, or of another length, are refused."""
    stream = io.BytesIO()
    empty = {f"narx/0/{number}": np.zeros((rows, 0)) for number in range(6)}
    np.savez(stream, **{"narx/0/": np.frombuffer(names, dtype=np.uint8)}, **empty)
    with pytest.raises(ValueError, match=said):
        unpack_models(stream.getvalue())

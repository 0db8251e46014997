"""`evenpace profile` on real scripts, and what a manager makes of profiles."""

import json
from functools import partial
from pathlib import Path

import pytest

from batchsize_manager.learning.profiles import Profile, Step, read_profiles
from evenpace.local.cluster import LocalCluster
from evenpace.local.profile_config import ProfileConfig
from evenpace.local.profiling import batch_sizes, is_out_of_memory, profile
from evenpace.reports import files
from lab.observer import Observer
from rpc.processes import ProcessFailedError
from tests.disks import fill
from tests.evenpace.commands import invoke

SCRIPTS = Path(__file__).parents[2] / "scripts"
LEAST_SQUARES = SCRIPTS / "train_least_squares.py"


run = partial(invoke, columns=120)


def test_batch_sizes_are_powers_of_two_and_midpoints():
    """Sizes lie between the bounds, both included, as multiples of a micro-batch where there is one."""
    assert list(batch_sizes(1, 100)) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
    assert list(batch_sizes(8, 48)) == [8, 12, 16, 24, 32, 48]
    assert list(batch_sizes(5, 45, 5)) == [5, 10, 15, 20, 30, 40]
    assert list(batch_sizes(12, 14, 5)) == []


@pytest.mark.slow
def test_a_profile_is_measured_up_to_what_fits_and_planned_by(tmp_path):
    """Every size that fits has its steps, though the script ends before; `evenpace plan` reads them."""
    out = tmp_path / "profiles" / "fast.json"
    options = ("--device", "a GPU", "--steps", 3, "--smallest", 2, "--largest", 32, "--out", out)
    result = run("profile", *options, LEAST_SQUARES, "--fitting", 8, "--out", tmp_path / "none")

    assert result.exit_code == 0, result.output
    assert "No larger batch: 12 samples do not fit" in result.output
    (measured,) = read_profiles([out])
    assert [(step.batch_size, step.count) for step in measured.steps] == [(n, 3) for n in (2, 3, 4, 6, 8)]
    assert (measured.device, measured.script, measured.limit) == ("a GPU", LEAST_SQUARES.name, 8)
    assert all(step.spread > 0 and 0 < step.memory <= 1 for step in measured.steps)

    planned = run("plan", "--total", 15, "--profiles", out, "GPU=2", "--json", tmp_path / "plan.json")
    assert planned.exit_code == 0, planned.output
    shares = json.loads((tmp_path / "plan.json").read_text())["balanced"]["shares"]
    assert sorted(share["samples"] for share in shares) == [7, 8]


def test_a_full_disk_is_noticed_before_anything_is_measured(small_disk):
    """The error names the file, and no script is started."""
    fill(small_disk / "filling")
    script = small_disk.parent / "never_runs.py"
    script.write_text("raise SystemExit('it ran')")
    result = run("profile", "--out", small_disk / "fast.json", script)
    assert result.exit_code == 1
    assert "No space left on device" in result.output
    assert "fast.json" in result.output
    assert "it ran" not in result.output


@pytest.mark.parametrize(
    ("log", "short"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying", True),
        ("ResourceExhaustedError: OOM when allocating tensor with shape[64,64,56,56]", True),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 EiB for an array", True),
        ("ValueError: expected 2 inputs, got 3", False),
    ],
)
def test_lacks_of_memory_are_known_by_what_frameworks_say(log, short):
    """So that what has fitted is written; other failures end the profile with the log."""
    assert is_out_of_memory(log) == short


@pytest.mark.slow
def test_a_script_that_fails_is_shown():
    """A script that fails with its first batch, or for another reason than memory, ends it with its log."""
    config = ProfileConfig(steps=1, smallest=4, largest=4)
    with pytest.raises(ProcessFailedError, match=r"(?s)profiled ended with status 1.*MemoryError"):
        profile(LEAST_SQUARES, ["--fitting", "2", "--out", "none"], config)


@pytest.mark.slow
def test_memory_that_is_short_ends_a_profile_before_batches_in_pieces(tmp_path):
    """A batch that `within_memory` has to cut is not measured, and the largest whole one is the limit."""
    arguments = ["--out", str(tmp_path / "out.npy"), "--fitting", "8"]
    measured, ended = profile(
        SCRIPTS / "train_short_of_memory.py", arguments, ProfileConfig(steps=2, smallest=4)
    )

    assert ended.endswith("samples do not fit into its memory")
    assert measured.limit == measured.steps[-1].batch_size in (8, 12)


@pytest.mark.ci
def test_micro_batches_and_all_reduce(tmp_path):
    """Sizes are multiples of a job's micro-batches; a script of torch.distributed is a group of one."""
    arguments = ["--epochs", "1000", "--out", str(tmp_path / "out.npy")]
    config = ProfileConfig(steps=2, largest=20, all_reduce=True)
    measured, ended = profile(SCRIPTS / "train_micro_batches.py", arguments, config)

    assert [step.batch_size for step in measured.steps] == [5, 10, 15, 20]
    assert (measured.micro_batch, measured.limit) == (5, None)
    assert ended == "20 samples were to be the most"


@pytest.mark.ci
def test_a_manager_starts_from_profiles(tmp_path, wait_until):
    """With a profile of each kind of device, the very first iteration is split by them."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    for device, per_sample in (("fast", 0.001), ("slow", 0.003)):
        steps = tuple(Step(size, per_sample * size) for size in batch_sizes(1, 64))
        files.write_json(Profile(device, "train.py", steps).content(), folder / f"{device}.json")

    with LocalCluster(tmp_path, workers=2, policy="learned", profiles=folder) as cluster:
        for device in ("slow", "fast"):
            arguments = ["--iterations", "60", "--out", str(tmp_path / f"{device}.npy")]
            cluster.start_worker(device, LEAST_SQUARES, arguments, {"--device": device})
        observer = Observer(cluster.manager, cluster.shard_addresses)
        wait_until(lambda: observer.poll() and observer.iterations, "the first iteration")
        cluster.wait()
        observer.close()
    first = observer.iterations[0]
    assert {name: part.batch_size for name, part in first.parts.items()} == {"fast": 12, "slow": 4}


def test_profiles_belong_to_the_learned_policy(tmp_path):
    """A manager with profiles and a policy that does not go by times is refused, and so is a bad file."""
    file = tmp_path / "a.json"
    files.write_json(Profile("a", "train.py", (Step(8, 1.0),)).content(), file)
    refused = run("manager", "--profiles", file, "--policy", "even")
    assert refused.exit_code == 1
    assert "policy 'even': with --profiles it must be 'learned'" in refused.output
    file.write_text("{}")
    refused = run("manager", "--profiles", file, "--policy", "learned")
    assert refused.exit_code == 1
    assert f"profile '{file}': profile with" in refused.output

"""Any mapping of micro-batches onto workers ends with one process's parameters: real models and processes."""

import gzip
import json

import pytest

from lab.experiments.mapping import MappedTraining, MappingConfig
from lab.experiments.mappings import MAPPINGS, VIRTUALFLOW
from tests import ROOT
from tests.evenpace.commands import invoke

CIFAR10 = ROOT.parent / "shared" / "data" / "cifar10"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """What ResNet-32 trains on: the first images of CIFAR-10, or generated ones where there are none."""
    if not CIFAR10.is_dir():
        return "generated"
    folder = tmp_path_factory.mktemp("cifar10")
    for name in ("data_batch_1.bin", "test_batch.bin"):
        with gzip.open(CIFAR10 / f"{name}.gz") as whole:
            (folder / name).write_bytes(whole.read(100 * 3073))
    return f"cifar10:{folder}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, images):
    """A function that returns a workload's training, and what one process makes of it."""
    known = {}

    def of(name, **options):
        if name not in known:
            config = MappingConfig(
                out=tmp_path_factory.mktemp(name), test_samples=100, dropout=0.3, **options
            )
            training = MappedTraining(name, config, images if name == "resnet32" else None)
            known[name] = training, training.alone()
        return known[name]

    return of


RESNET32 = {"iterations": 10, "batch_size": 24, "samples": 70, "lr": 0.001}  # at 0.01 it amplifies rounding
TRANSFORMER = {"iterations": 20, "batch_size": 48, "samples": 200, "lr": 0.01}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "options", "mapping"),
    [
        pytest.param("resnet32", RESNET32, "churn", marks=pytest.mark.release),
        ("resnet32", RESNET32, "4-uneven-all-reduce"),
        ("transformer", TRANSFORMER, "churn"),
        pytest.param("transformer", TRANSFORMER, "8-uneven", marks=pytest.mark.release),
    ],
)
def test_any_mapping_ends_with_the_parameters_of_one_process(trained, tmp_path, name, options, mapping):
    """With batch normalisation, dropout and random crops, through joins, leaves, kills and other splits."""
    training, alone = trained(name, **options)
    run = training.run(MAPPINGS[mapping], tmp_path)
    assert len(run.splits) == options["iterations"]
    if mapping == "churn":
        assert {"worker-1", "worker-2"} < set().union(*run.splits)
        assert set(run.splits[0]) == {"worker-0", "worker-1"}
        largest = max(split.get("worker-1", 0) for split in run.splits)
        assert (
            largest > run.splits[0]["worker-1"] or name == "resnet32"
        )  # whose 6 micro-batches do not show it
        assert "worker-1" not in run.splits[-1]
    else:
        assert len(set(run.splits[0].values())) > 1
    assert float((run.state - alone).abs().max()) < 1e-10
    assert run.apart < (1e-10 if MAPPINGS[mapping].all_reduce else 1e-300)


@pytest.mark.release
def test_without_micro_batches_the_mapping_shows(tmp_path):
    """The command prints and saves what each mapping ends with, beside VirtualFlow's tables."""
    command = ["lab", "experiment", "mapping", "--workloads", "transformer"]
    options = ["--iterations", "4", "--batch-size", "24", "--samples", "60", "--test-samples", "50"]
    done = invoke(
        *command, "--mappings", "1,2-uneven,2-without", *options, "--out", tmp_path, catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    entry = json.loads((tmp_path / "report.json").read_text())["workloads"]["transformer"]
    rows = entry["mappings"]
    assert max(rows[name]["difference"] for name in ("1", "2-uneven")) < 1e-10
    assert rows["2-without"]["difference"] > 1e-3
    assert entry["rounding"] < 1e-10
    assert rows["2-uneven"]["accuracy"] == rows["1"]["accuracy"] == entry["alone"]["accuracy"]
    for value in VIRTUALFLOW["Table 2, BERT-BASE on GLUE"]["CoLA"].values():
        assert f"{value:.2f}" in done.output


@pytest.mark.release
def test_an_interrupted_experiment_goes_on_where_it_was(tmp_path, monkeypatch):
    """What was trained with the same options is not trained again, unless that is asked for."""
    run, begun = MappedTraining.run, []

    def experiment(*options, until=None):
        def noted(training, mapping, folder, watch):
            begun.append(folder.name)
            if folder.name == until:
                raise KeyboardInterrupt
            return run(training, mapping, folder, watch)

        begun.clear()
        monkeypatch.setattr(MappedTraining, "run", noted)
        given = ["--workloads", "digits", "--mappings", "1,2-uneven", "--out", str(tmp_path), *options]
        sizes = ["--iterations", "4", "--batch-size", "24", "--samples", "60", "--test-samples", "50"]
        return invoke("lab", "experiment", "mapping", *given, *sizes, catch_exceptions=False)

    def rows():
        return json.loads((tmp_path / "report.json").read_text())["workloads"]["digits"]["mappings"]

    assert experiment(until="2-uneven").exit_code == 1
    before = rows()
    assert (begun, list(before)) == (["1", "2-uneven"], ["1"])
    done = experiment()
    assert done.exit_code == 0, done.output
    assert begun == ["2-uneven"]
    assert "digits on plain: has been run\ndigits on 1: has been run\n" in done.output
    assert rows()["1"] == before["1"]
    assert max(rows()[name]["difference"] for name in ("1", "2-uneven")) < 1e-10
    assert 0 <= rows()["2-uneven"]["difference_from_first"] < 1e-10
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert experiment().exit_code == 0
    assert begun == []
    exact = experiment("--exact", until="1")  # which does not matter to plain PyTorch
    assert (begun, "plain: has been run" in exact.output) == (["1"], True)
    other = experiment("--lr", "0.01", until="1")
    assert (begun, "has been run" in other.output) == (["1"], False)
    asked = experiment("--again", until="1")
    assert (begun, "has been run" in asked.output) == (["1"], False)

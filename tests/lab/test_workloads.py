"""The workloads: real training by two workers, whose batches are uneven, and what the scripts say."""

import json
import runpy

import numpy as np
import pytest
import torch
from sklearn.datasets import dump_svmlight_file, make_classification
from sklearn.linear_model import LogisticRegression

from evenpace.local.cluster import LocalCluster
from lab.workloads import common, linear, text
from lab.workloads.by_name import Training
from tests import ROOT

pytestmark = pytest.mark.usefixtures("generated_once")

SCRIPT = ROOT / "lab" / "experiments" / "train_workload.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A manager and a shard for jobs of two workers."""
    patient = ("--silence", "240")  # nobody does the part of one that is held up
    with LocalCluster(tmp_path_factory.mktemp("cluster"), workers=2, manager_options=patient) as cluster:
        yield cluster


class Job:
    """A workload, trained by two workers, of which one takes at most `limit` samples of a batch."""

    def __init__(self, cluster, wait_until, folder, name, *arguments, limit=8):
        for i in range(2):
            files = ["--metrics", str(folder / f"{i}.jsonl"), "--save", str(folder / f"{i}.pt")]
            test = [] if i == 0 else ["--test-samples", "0"]
            options = {"--job": folder.name} | ({"--max-batch-size": str(limit)} if i else {})
            cluster.start_worker(
                f"{folder.name}-{i}", SCRIPT, [name, *arguments, *files, *test], options=options
            )
        wait_until(lambda: not cluster.check(), "the end of training", 480)
        assert not (folder / "1.jsonl").exists()
        self.metrics = json.loads((folder / "0.jsonl").read_text())  # the first worker's
        training = Training(name, arguments)
        self.before = common.evaluate(training.make(training.options()))["loss"]
        self.states = [torch.load(folder / f"{i}.pt") for i in range(2)]  # each worker's trained model

    def learned(self, iterations):
        """Check that the evaluation is after `iterations`, and that the loss has gone down."""
        assert self.metrics["iteration"] == iterations
        assert self.metrics["seconds"] > 0
        assert 0 <= self.metrics["accuracy"] <= 1
        assert self.metrics["loss"] < self.before

    def equal(self, but=()):
        """Check that both workers have the same model; `but` names what each has for itself."""
        first, second = self.states
        assert first.keys() == second.keys()
        for name in first:
            if not name.endswith(but or "\0"):
                assert torch.equal(first[name], second[name]), name


@pytest.fixture
def svmlight(tmp_path):
    """300 training and 100 test samples with two labels, in files; and the training samples as arrays."""
    dense, labels = make_classification(400, 20, n_informative=6, random_state=0)
    dense[np.random.default_rng(0).random(dense.shape) < 0.6] = 0
    paths = tmp_path / "train.svm", tmp_path / "test.svm"
    for path, part in zip(paths, (slice(300), slice(300, 400)), strict=True):
        dump_svmlight_file(dense[part], labels[part], str(path))
    return paths, dense[:300], labels[:300]


@pytest.mark.ci
def test_logistic_regression_finds_scikit_learns_optimum(tmp_path, cluster, wait_until, svmlight):
    """Two workers with parts of 292 and 8 samples descend to what scikit-learn's solver finds."""
    paths, dense, labels = svmlight
    penalty = 0.05
    arguments = ["--data", f"svmlight:{paths[0]}", "--test-data", f"svmlight:{paths[1]}"]
    arguments += ["--batch-size", "300", "--iterations", "120"]
    arguments += ["--lr", "1", "--weight-decay", str(penalty)]
    job = Job(cluster, wait_until, tmp_path, "logistic-regression", *arguments)
    job.learned(120)
    job.equal()
    solved = LogisticRegression(C=1 / (penalty * 300), tol=1e-9, max_iter=1000).fit(dense, labels)
    state = job.states[0]
    np.testing.assert_allclose(state["weight"].squeeze(1), solved.coef_[0], atol=1e-4)
    np.testing.assert_allclose(state["bias"], solved.intercept_, atol=1e-4)


def run_script(monkeypatch, *arguments):
    """Run the script in this process; its exit status."""
    monkeypatch.setattr("sys.argv", [str(SCRIPT), *arguments])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return end.value.code


WRONG_OPTIONS = [
    ("knn", [], "invalid choice: 'knn'"),
    ("svm", ["--data", "svmlight:/nowhere"], "/nowhere: cannot be read: No such file"),
    ("svm", ["--test-data", "svmlight:a9a.t"], "generated data has test samples of its own"),
    ("logistic-regression", ["--iterations", "0"], "'0': must be a whole number from 1"),
    ("cifarnet", ["--data", "cifar10:/nowhere"], "/nowhere: no such folder"),
    ("transformer", ["--data", "shakespeare"], "expected python-docs or text:PATH"),
    ("transformer", ["--width", "50"], "width 50: must be a multiple of the 4 heads"),
]


@pytest.mark.ci
@pytest.mark.parametrize(("name", "arguments", "message"), WRONG_OPTIONS)
def test_wrong_options_are_named(monkeypatch, capsys, name, arguments, message):
    """A wrong option ends the script with status 2 and a line that says what is allowed."""
    assert run_script(monkeypatch, name, *arguments) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_file_is_split_into_training_and_test(svmlight):
    """Without test data, a fifth of the samples is kept, the same each time, and none is in both."""
    (path, _), dense, _ = svmlight
    options = linear.parser("").parse_args(["--data", f"svmlight:{path}"])
    workload, again = linear.make_svm(options), linear.make_svm(options)
    assert (len(workload.train_set), len(workload.test_set)) == (240, 60)
    parts = [[row[1].sum() for row in part] for part in (workload.train_set, workload.test_set)]
    assert parts == [[row[1].sum() for row in part] for part in (again.train_set, again.test_set)]
    np.testing.assert_allclose(sorted(parts[0] + parts[1]), sorted(dense.sum(1)), rtol=1e-4, atol=1e-4)


def test_a_text_is_cut_into_pieces():
    """Each piece's targets are the bytes that follow its inputs; pieces follow each other."""
    pieces = text.TextDataset(np.arange(23, dtype=np.uint8), context=5)
    assert len(pieces) == 4
    assert [[part.tolist() for part in piece] for piece in pieces] == [
        [list(range(start, start + 5)), list(range(start + 1, start + 6))] for start in (0, 5, 10, 15)
    ]
    assert len(text.TextDataset(np.arange(21, dtype=np.uint8), context=5)) == 4
    assert len(text.TextDataset(np.arange(20, dtype=np.uint8), context=5)) == 3


def test_an_evaluation_counts_every_sample_once():
    """Loss and accuracy over several batches are those of all samples at once."""
    options = linear.parser("").parse_args(["--test-samples", "600"])
    workload = linear.make_logistic_regression(options)
    with torch.no_grad():
        workload.model.weight.copy_(torch.randn(workload.model.weight.shape))
        inputs, targets = workload.collate([workload.test_set[i] for i in range(600)])
        margins = workload.model(inputs)
    found = common.evaluate(workload)
    assert found["loss"] == pytest.approx(float(workload.loss(margins, targets)), rel=1e-5)
    assert found["accuracy"] == float(((margins > 0) == (targets > 0)).double().mean())

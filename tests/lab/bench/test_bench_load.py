"""The load benchmark: its workers, its figures, and that limits are tried."""

import time

import pytest
from rich.console import Console

from idl.errors import UnavailableError
from lab.bench import load_benchmark
from lab.bench.load_benchmark import run
from lab.bench.load_generators import LoadConfig
from lab.bench.load_rounds import Rounds, measured


@pytest.mark.ci
def test_load_on_a_real_manager(monkeypatch):
    """Jobs spread over two generators run their rounds without an error; what is too much is refused."""
    in_time = load_benchmark._progress

    def progress(console, seconds, generators, watch):
        """Go on after the time, where somebody was held up, until each job has some rounds."""
        yield from in_time(console, seconds, generators, watch)
        until = time.monotonic() + 240
        rounds = generators.rounds
        while (len(rounds.finished) < 3 or rounds.slowest() < 20) and time.monotonic() < until:
            yield 1.0

    monkeypatch.setattr(load_benchmark, "_progress", progress)
    patient = ("--silence", "240")
    config = LoadConfig(3, 5, seconds=3, compute=0.0, processes=2, manager_options=patient)
    figures = run(config, Console(quiet=True))

    assert figures["errors"] == {}
    assert set(figures["by_job"]) == {"load-0", "load-1", "load-2"}
    assert figures["rounds"] >= sum(job["rounds"] for job in figures["by_job"].values())
    assert figures["round_ms"]["p50"] <= figures["round_ms"]["p99"] <= figures["round_ms"]["max"]
    assert figures["manager"]["files"]["most"] >= 15
    assert figures["manager"]["cores"] > 0
    kinds = {refusal["what"]: (refusal["error"], refusal["message"]) for refusal in figures["refusals"]}
    assert kinds.pop("a job too many") == ("UnavailableError", "3 jobs are running; no more are allowed")
    error, message = kinds.pop("a member too many")
    assert (error, "has 5 members already" in message) == ("UnavailableError", True)
    assert all("connections are open already" in message for _, message in kinds.values())


def test_rounds_last_from_the_last_report_to_the_last_answer():
    """A round ends when all generators have told; it lasts from the last report to the last answer."""
    rounds = Rounds(total=10, generators=2)
    rounds.add("a", 0, sent=1.0, answered=3.0, samples=4)
    assert rounds.count() == 0
    rounds.add("a", 0, sent=2.0, answered=2.5, samples=6)
    rounds.add("b", 0, sent=5.0, answered=6.0, samples=5)
    rounds.add("b", 0, sent=5.0, answered=6.5, samples=5)

    assert rounds.finished == {"a": [(3.0, 1.0)], "b": [(6.5, 1.5)]}
    assert (rounds.count(), rounds.slowest()) == (2, 1)


def test_measured_leaves_the_warm_up_out():
    """The first rounds of each job do not count for latencies."""
    rounds = [(float(i), 100.0) for i in range(5)] + [(float(i), 0.001 * i) for i in range(5, 105)]
    figures = measured({"a": rounds}, 105.0)
    assert figures["rounds_per_second"] == 1.0
    assert figures["round_ms"]["rounds"] == 100
    assert figures["round_ms"]["max"] == pytest.approx(104)
    assert figures["round_ms"]["p50"] == pytest.approx(54.5)
    assert [minute["rounds"] for minute in figures["by_minute"]] == [60, 40]
    with pytest.raises(UnavailableError, match="too few rounds"):
        measured({"a": rounds, "b": rounds[:5]}, 105.0)

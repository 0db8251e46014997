"""`evenpace lab simulate`: figures and lives, resumption, and inputs that cannot be simulated."""

import json
import shutil
from dataclasses import fields, make_dataclass, replace
from pathlib import Path

import pytest

from lab.simulations.config import NodeGroup, SimulationConfig
from tests.evenpace.commands import invoke

HEADER = "name,time,application,num_replicas,batch_size\n"
ARRIVALS = HEADER + "a,10,made,1,4\nb,70,made,2,16\n"
SECONDS = "step_time,sync_time\n"


def write_traces(folder, batches=(4, 16), model="made", suffix=""):
    """Write a model: a sample takes 0.5 s, a node a little, and noise is 3 to 1 at batches of 4."""
    model = folder / model
    model.mkdir(parents=True, exist_ok=True)
    placed = [
        f"{shape},{local},{0.1 * len(shape) + 0.5 * local},{0.1 * len(shape)}"
        for shape in ("1", "2", "11", "12")
        for local in (2, 8)
    ]
    (model / f"placements{suffix}.csv").write_text(
        f"placement,local_bsz,{SECONDS}" + "\n".join(placed) + "\n"
    )
    wide = [f"3,{n},{local},{0.3 + 0.5 * local},0.3" for n in (3, 6) for local in (2, 8)]
    (model / f"scalability{suffix}.csv").write_text(
        f"num_nodes,num_replicas,local_bsz,{SECONDS}" + "\n".join(wide) + "\n"
    )
    for batch in batches:
        rows = [f"{10 * k},{40 * k // batch},0.5,1.0,3.0" for k in (1, 2)]
        (model / f"validation-{batch}.csv").write_text(
            "progress,iteration,metric,grad_sqr,grad_var\n" + "\n".join(rows) + "\n"
        )


@pytest.fixture
def data(tmp_path):
    """A folder with measurements in `traces`, and one workload in `workloads`."""
    write_traces(tmp_path / "traces")
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "w.csv").write_text(ARRIVALS)
    return tmp_path


def simulate(data, *options, workload="workloads", policies=("tiresias",), columns=200):
    """The result of the command on a cluster of two nodes of one device."""
    arguments = ["lab", "simulate", "--workload", data / workload, "--traces", data / "traces"]
    arguments += ["--cluster", "gpu=2x1", "--json", data / "out.json"]
    arguments += [part for policy in policies for part in ("--policy", policy)]
    return invoke(*arguments, *options, columns=columns)


def results(data):
    """The results in the file."""
    return json.loads((data / "out.json").read_text())["simulations"]


def spoil(data):
    """Give the first result in the file a mean that no simulation has; it shows whether it is run again."""
    content = {"simulations": results(data)}
    content["simulations"][0]["figures"]["mean_completion_s"] = 123456.0
    (data / "out.json").write_text(json.dumps(content))


def test_the_life_of_each_job_is_kept(data):
    """The first starts at 60 s, pauses 30 s, and takes 2.1 s for each of 20 iterations; the second waits."""
    shown = simulate(data)
    assert shown.exit_code == 0, shown.output
    (result,) = results(data)
    first, second = result["lives"]

    assert (first["started"], first["epochs"], first["ended"]) == (60, [111, 132], 132)
    assert first["placements"] == [[60, [["gpu-0", 1]]]]
    assert (first["batches"], first["device_seconds"]) == ([[60, 4]], 30 + 42)
    assert (second["submitted"], second["started"], second["restarts"]) == (70, 180, 0)
    assert second["placements"] == [[180, [["gpu-0", 1], ["gpu-1", 1]]]]


@pytest.mark.parametrize("name", [setting.name for setting in fields(SimulationConfig)] + ["later"])
def test_results_depend_on_every_setting_but_a_few(data, name):
    """Files of jobs and measurements count by their contents, and simulations at once do not matter."""
    given = {"workload": (data,), "policy": ("tiresias",), "traces": (data,)}
    file = data / "workloads" / "w.csv"
    later = make_dataclass("Later", [("later", Path | None, None)], bases=(SimulationConfig,), frozen=True)
    others = {
        "workload": (file,),
        "traces": (file,),
        "policy": ("optimus",),
        "cluster": (NodeGroup("gpu", 2, 2),),
        "rules": "mixed",
        "interval": 59,
        "restart_cost": 7,
        "capacity": file,
        "failures": 2.0,
        "later": file,
    }
    plain = later(**given)
    value = others.get(name)
    if value is None:
        value = getattr(plain, name) + 1 if name != "interference" else 0.5
    first, second = (each.conditions("tiresias") for each in (plain, replace(plain, **{name: value})))

    assert (first == second) == (name in ("workload", "policy", "traces", "jobs"))
    assert json.loads(json.dumps(second)) == second


def test_a_run_adds_what_is_missing(data):
    """A later run with one more policy simulates that one alone, and the file has both."""
    simulate(data)
    spoil(data)
    shown = simulate(data, policies=("tiresias", "optimus"))

    assert "123456.0" in shown.output
    assert [result["policy"] for result in results(data)] == ["optimus", "tiresias"]


@pytest.mark.ci
def test_results_repeat(data):
    """The file is the same to the byte, however many simulations run at once."""
    policies = ("pollux", "optimus", "tiresias")
    simulate(data, "--jobs", 3, policies=policies)
    first = (data / "out.json").read_bytes()
    (data / "out.json").unlink()
    simulate(data, policies=policies)

    assert (data / "out.json").read_bytes() == first


PLACEMENTS = f"placement,local_bsz,{SECONDS}"
EPOCHS = "progress,iteration,grad_sqr,grad_var\n"
CAPACITY = ("--capacity", "nodes.csv")


@pytest.mark.parametrize(
    ("path", "text", "options", "said"),
    [
        (
            "workloads/w.csv",
            HEADER + "a,1,huge,1,4\n",
            (),
            "w.csv: job 'a' trains 'huge'; the applications are made",
        ),
        ("workloads/w.csv", None, (), "there is no CSV file in this folder"),
        ("traces/made", None, (), "there is no MODEL with placements.csv, scalability.csv, validation-M.csv"),
        ("traces/made/placements.csv", PLACEMENTS + "1a,2,1.0,0.1\n", (), "placement '1a': must be a digit"),
        ("traces/made/placements.csv", PLACEMENTS + "1,2,1.0,1.1\n", (), "sync_time '1.1': must be"),
        ("traces/made/validation-4.csv", EPOCHS + "10,10,0,0\n", (), "neither gradient nor noise"),
        (
            "nodes.csv",
            "time_s,nodes\n0,2\n",
            (*CAPACITY, "--failures", 5),
            "one of them says when nodes are there",
        ),
        ("out.json", '{"other": 1}', (), "not the results of simulations"),
    ],
)
def test_what_cannot_be_simulated_is_refused(data, monkeypatch, path, text, options, said):
    """One line names the file or the job and what is allowed, and nothing is written."""
    monkeypatch.chdir(data)
    for file in [*data.glob(path)] if text is None else []:
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    if text is not None:
        (data / path).write_text(text)
    shown = simulate(data, *options)

    assert shown.exit_code == 1
    assert said in shown.output
    assert not (data / "out.json").exists() or (data / path).read_text() == text


@pytest.fixture
def mixed(data):
    """Measurements on two kinds of devices, their trainings in another folder, and one workload."""
    shutil.rmtree(data / "traces")
    for suffix in ("-slow", "-fast"):
        write_traces(data / "traces", (), suffix=suffix)
    write_traces(data / "trainings")
    return data


def test_clusters_of_several_kinds_are_simulated(mixed):
    """Files of a model may lie in several folders; each policy has its own interval, which the file has."""
    options = ("--traces", mixed / "trainings", "--cluster", "slow=1x2,fast=1x2", "--rules", "mixed")
    shown = simulate(mixed, *options, policies=("sia", "gavel"))
    assert shown.exit_code == 0, shown.output
    gavel, sia = sorted(results(mixed), key=lambda result: result["policy"])

    cluster = {"cluster": "slow=1x2,fast=1x2", "rules": "mixed", "restart_cost": None}
    assert gavel["conditions"] == {**cluster, "interval": 360}
    assert sia["conditions"] == {**cluster, "interval": 60}
    assert [life["started"] for life in gavel["lives"]] == [360, 360]
    assert all(life["ended"] for life in sia["lives"])

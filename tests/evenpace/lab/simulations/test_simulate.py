"""`evenpace simulate`: figures and lives, resumption, and inputs that cannot be simulated."""

import json
import shutil

import pytest
from click.testing import CliRunner

from evenpace.cli import cli

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


def simulate(data, *options, workload="workloads", policies=("tiresias",)):
    """The result of the command on a cluster of two nodes of one device."""
    arguments = [
        "simulate",
        "--workload",
        data / workload,
        "--traces",
        data / "traces",
        "--cluster",
        "gpu=2x1",
    ]
    arguments += ["--json", data / "out.json"]
    arguments += [part for policy in policies for part in ("--policy", policy)]
    return CliRunner().invoke(cli, [*map(str, arguments), *map(str, options)], env={"COLUMNS": "200"})


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


def test_figures_are_shown_by_policy_and_workload(data):
    """The table of the folder has the mean that the file has, for each policy."""
    shown = simulate(data, policies=("tiresias", "optimus", "pollux"))
    assert "workloads: seconds to completion" in shown.output

    assert sorted(result["policy"] for result in results(data)) == ["optimus", "pollux", "tiresias"]
    for result in results(data):
        (line,) = [line for line in shown.output.splitlines() if f" {result['policy']} " in line]
        assert line.split()[0] == "w"
        assert f"{result['figures']['mean_completion_s']:.1f}" in line


def test_several_workloads_have_a_mean(data):
    """A folder stands for its files; below them is the mean over them."""
    (data / "workloads" / "v.csv").write_text(ARRIVALS.replace("70", "65"))
    shown = simulate(data, "--jobs", 2)
    means = [result["figures"]["mean_completion_s"] for result in results(data)]

    assert len(means) == 2
    (line,) = [line for line in shown.output.splitlines() if "mean of 2" in line]
    assert f"{sum(means) / 2:.1f}" in line


def test_a_simulation_is_not_run_again(data):
    """A result of the same files and settings is taken as it stands in the file."""
    simulate(data)
    spoil(data)

    assert "123456.0" in simulate(data).output


def test_a_run_adds_what_is_missing(data):
    """A later run with one more policy simulates that one alone, and the file has both."""
    simulate(data)
    spoil(data)
    shown = simulate(data, policies=("tiresias", "optimus"))

    assert "123456.0" in shown.output
    assert [result["policy"] for result in results(data)] == ["optimus", "tiresias"]


def _other_arrivals(data):
    (data / "workloads" / "w.csv").write_text(ARRIVALS.replace("b,70", "b,75"))


def _other_traces(data):
    shutil.rmtree(data / "traces")
    write_traces(data / "traces", (4, 8, 16))


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (_other_arrivals, []),
        (_other_traces, []),
        (lambda data: None, ["--restart-cost", 29]),
        (lambda data: None, ["--interval", 50]),
        (lambda data: None, ["--cluster", "gpu=3x1"]),
        (lambda data: None, ["--cluster", "gpu=2x2"]),
    ],
    ids=["arrivals", "measurements", "restart cost", "interval", "nodes", "devices"],
)
def test_a_simulation_of_something_else_is_run(data, change, options):
    """Other files or settings than those of a result are another simulation; the file keeps both."""
    simulate(data)
    spoil(data)
    change(data)
    shown = simulate(data, *options)

    assert shown.exit_code == 0, shown.output
    assert "123456.0" not in shown.output
    assert len(results(data)) == 2


def test_results_repeat(data):
    """The file is the same to the byte, however many simulations run at once."""
    policies = ("pollux", "optimus", "tiresias")
    simulate(data, "--jobs", 3, policies=policies)
    first = (data / "out.json").read_bytes()
    (data / "out.json").unlink()
    simulate(data, policies=policies)

    assert (data / "out.json").read_bytes() == first


def test_without_a_file_the_table_is_all(data):
    """Nothing is written that was not asked for."""
    before = sorted(data.rglob("*"))
    arguments = ["--workload", data / "workloads", "--traces", data / "traces", "--policy", "tiresias"]
    shown = CliRunner().invoke(cli, ["simulate", *map(str, arguments)])

    assert shown.exit_code == 0, shown.output
    assert sorted(data.rglob("*")) == before


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        (HEADER, "w.csv: there is no row"),
        ("name,time\na,1\n", "no column 'application'"),
        (HEADER + "a,soon,made,1,4\n", "line 2: time 'soon': must be a whole number"),
        (HEADER + "a,1,huge,1,4\n", "w.csv: job 'a' trains 'huge'; the applications are made"),
        (HEADER + "a,1,made,3,4\n", "w.csv: job 'a' asks for 3 devices; the cluster has 2"),
        (HEADER + "a,1,made,1,99\n", "w.csv: job 'a' asks for batches of 99 samples"),
    ],
)
def test_a_workload_that_cannot_be_simulated_is_refused(data, arrivals, message):
    """One line names the file, the job and what is allowed, and nothing is written."""
    (data / "workloads" / "w.csv").write_text(arrivals)
    shown = simulate(data)

    assert shown.exit_code == 1
    assert message in shown.output
    assert not (data / "out.json").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("placements.csv", f"placement,local_bsz,{SECONDS}1a,2,1.0,0.1\n", "placement '1a': must be a digit"),
        ("placements.csv", f"placement,local_bsz,{SECONDS}", "placements.csv: there is no row"),
        ("placements.csv", f"placement,local_bsz,{SECONDS}1,2,1.0,1.1\n", "sync_time '1.1': must be"),
        (
            "validation-4.csv",
            "progress,iteration,grad_sqr,grad_var\n10,10,0,0\n",
            "neither gradient nor noise",
        ),
        ("validation-4.csv", "progress,iteration,grad_sqr,grad_var\n", "validation-4.csv: there is no row"),
    ],
)
def test_measurements_of_another_form_are_refused(data, file, content, message):
    """One line names the file or the model, and what is wrong."""
    (data / "traces" / "made" / file).write_text(content)
    shown = simulate(data)

    assert shown.exit_code == 1
    assert message in shown.output


def test_a_folder_without_models_is_refused(data):
    """The message says what a folder of measurements has."""
    shutil.rmtree(data / "traces" / "made")
    assert "there is no MODEL with placements.csv, scalability.csv, validation-M.csv" in simulate(data).output


def test_a_model_without_trainings_is_refused(data):
    """Progress cannot be told from step times."""
    for path in (data / "traces" / "made").glob("validation-*.csv"):
        path.unlink()
    assert "there is no validation-M.csv" in simulate(data).output


def test_a_folder_without_workloads_is_refused(data):
    """An empty folder is most likely a wrong one."""
    (data / "workloads" / "w.csv").unlink()
    assert "there is no CSV file in this folder" in simulate(data).output


def test_a_workload_that_does_not_exist_is_refused(data):
    """The message names the path."""
    shown = simulate(data, workload="nowhere")
    assert shown.exit_code == 2
    assert "nowhere' does not exist" in shown.output


def test_an_unknown_policy_is_refused(data):
    """The message has the policies that there are."""
    shown = simulate(data, policies=("random",))
    assert shown.exit_code == 2
    assert all(name in shown.output for name in ("'random'", "tiresias", "optimus", "pollux"))


def test_a_file_of_something_else_is_not_overwritten(data):
    """Results are added to files of results only."""
    (data / "out.json").write_text('{"other": 1}')
    shown = simulate(data)

    assert shown.exit_code == 1
    assert "not the results of simulations" in shown.output
    assert (data / "out.json").read_text() == '{"other": 1}'


@pytest.fixture
def mixed(data):
    """Measurements on two kinds of devices, their trainings in another folder, and one workload."""
    shutil.rmtree(data / "traces")
    for suffix in ("-slow", "-fast"):
        write_traces(data / "traces", (), suffix=suffix)
    write_traces(data / "trainings")
    return data


def simulate_mixed(data, *options, cluster="slow=1x2,fast=1x2", policies=("sia", "gavel")):
    """The result of the command on a cluster of two kinds."""
    options = ("--traces", data / "trainings", "--cluster", cluster, "--rules", "mixed", *options)
    return simulate(data, *options, policies=policies)


def test_clusters_of_several_kinds_are_simulated(mixed):
    """Files of a model may lie in several folders; each policy has its own interval, which the file has."""
    shown = simulate_mixed(mixed)
    assert shown.exit_code == 0, shown.output
    gavel, sia = sorted(results(mixed), key=lambda result: result["policy"])

    cluster = {"cluster": "slow=1x2,fast=1x2", "rules": "mixed", "restart_cost": None}
    assert gavel["conditions"] == {**cluster, "interval": 360}
    assert sia["conditions"] == {**cluster, "interval": 60}
    assert [life["started"] for life in gavel["lives"]] == [360, 360]
    assert all(life["ended"] for life in sia["lives"])


def test_a_restart_cost_is_for_all_models(mixed):
    """Without a cost, jobs end sooner."""
    simulate_mixed(mixed, "--restart-cost", 0, policies=("sia",))
    simulate_mixed(mixed, policies=("sia",))
    free, costly = (result["figures"]["mean_completion_s"] for result in results(mixed))

    assert free < costly


@pytest.mark.parametrize(
    ("cluster", "policy", "message"),
    [
        ("slow=1x2,huge=1x2", "sia", "model 'made': there is no placements-huge.csv in "),
        ("gpu=1x2,huge=1x2", "sia", "model 'made': there is no placements-huge.csv in "),
        ("slow=1x2,fast=1x2", "pollux", "policy 'pollux' takes all devices to be alike; for several kinds"),
        ("slow=1x2,slow=2x2", "sia", "a kind comes twice"),
        ("slow=1x0", "sia", "cluster 'slow=1x0': give KIND=NODESxDEVICES for each kind"),
        ("slow", "sia", "cluster 'slow': give KIND=NODESxDEVICES for each kind"),
    ],
)
def test_a_cluster_that_cannot_be_simulated_is_refused(mixed, cluster, policy, message):
    """One line names what is missing or what is allowed, and nothing is written."""
    shown = simulate_mixed(mixed, cluster=cluster, policies=(policy,))

    assert shown.exit_code != 0
    assert message in shown.output
    assert not (mixed / "out.json").exists()


def test_a_model_that_no_job_trains_need_not_be_measured_on_all_kinds(mixed):
    """It is left out, as if it were not there."""
    write_traces(mixed / "traces", model="other", suffix="-slow")
    assert simulate_mixed(mixed, policies=("gavel",)).exit_code == 0


def test_the_table_fits_eighty_columns(data):
    """Names and figures are whole where the output is no terminal."""
    policies = ("tiresias", "pollux", "gavel")
    arguments = ["simulate", "--workload", data / "workloads", "--traces", data / "traces"]
    arguments += [part for policy in policies for part in ("--policy", policy)]
    shown = CliRunner().invoke(cli, list(map(str, arguments)), env={"COLUMNS": "80"}).output

    assert all(f" {policy} " in shown for policy in policies)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80

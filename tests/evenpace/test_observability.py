"""The files for Prometheus and Grafana: queries name existing metrics, and a real Prometheus runs them."""

import http
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request

import pytest
import yaml

from evenpace.metrics.catalogue import METRICS
from rpc.processes import end_process
from tests import ROOT
from tests.evenpace.observed import JOB, described, observed_cluster
from tests.services import address_of_our_own

FOLDER = ROOT / "docker" / "observability"
DASHBOARD = json.loads((FOLDER / "grafana/dashboards/evenpace.json").read_text())
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text())
CONFIG = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SCRAPED = {"instance", "job"}  # the labels that Prometheus adds
FOREIGN = {"up": SCRAPED, "process_cpu_seconds_total": set(), "process_resident_memory_bytes": set()}
# What is not there in a run in which nothing goes wrong, or that lasts for seconds only.
QUIET = ("outcome!=",)


def targets():
    """Return every query of the dashboard, with the title of its panel."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def alerts():
    """Return every alert's name and query."""
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


EXPRESSIONS = [*targets(), *alerts()]


def selectors(expression):
    """Return the metrics that a query of PromQL names, each with the labels that it selects by."""
    plain = re.sub(r'"(\\.|[^"\\])*"', '""', expression)
    plain = re.sub(r"\[[^]]*\]", "", plain)
    without_groups = re.sub(r"\b(by|on|ignoring|without|group_left|group_right)\s*\([^)]*\)", " ", plain)
    for name, labels in re.findall(r"([a-zA-Z_:][\w:]*)\s*(?:\{([^}]*)\})?(?!\s*\(|\w)", without_groups):
        if name not in {"and", "or", "unless", "on", "by", "bool", "offset", "group_left"}:
            yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels))


def grouped(expression):
    """Return the labels that a query of PromQL groups or matches by."""
    for labels in re.findall(r"\b(?:by|on|ignoring|without)\s*\(([^)]*)\)", expression):
        yield from (label.strip() for label in labels.split(",") if label.strip())


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS, ids=[title for title, _ in EXPRESSIONS])
def test_queries_name_what_there_is(title, expression):
    """Each metric that a query names is exposed, with the labels that it selects and groups by."""
    found = list(selectors(expression))
    assert found
    known = set(SCRAPED)
    for name, labels in found:
        metric = described(name)
        assert metric is not None or name in FOREIGN, name
        own = set(metric.labels) if metric else FOREIGN[name]
        if metric and metric.kind != "gauge":
            assert name != metric.name, f"{name}: a {metric.kind} has other names"
        if name.endswith("_bucket"):
            own = own | {"le"}
        assert labels <= own | SCRAPED, name
        known |= own
    assert set(grouped(expression)) <= known


def test_the_dashboard_shows_each_kind_of_thing():
    """Its panels show metrics of every part, of the job that is chosen."""
    shown = {described(name) for _, query in targets() for name, _ in selectors(query)} - {None}
    assert {part for metric in shown for part in metric.parts} >= {"manager", "ps", "worker"}
    (variable,) = DASHBOARD["templating"]["list"]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
    assert label in METRICS[metric].labels


def test_compose_scrapes_each_service_that_shows_figures():
    """Prometheus scrapes every service with --metrics, and only this machine reaches the rest."""
    watched = {
        name for name, service in COMPOSE["services"].items() if "--metrics" in str(service.get("command"))
    }
    lookups = [config["dns_sd_configs"][0] for config in CONFIG["scrape_configs"]]
    assert {name for lookup in lookups for name in lookup["names"]} == watched
    assert {"manager", "ps", "worker"} <= watched
    for name in watched:
        assert "--metrics 0.0.0.0:9300" in COMPOSE["services"][name]["command"]
    assert {lookup["port"] for lookup in lookups} == {9300}
    assert all(config["honor_labels"] for config in CONFIG["scrape_configs"])
    assert COMPOSE["networks"]["cluster"]["internal"] is True
    for name in ("prometheus", "grafana"):
        service = COMPOSE["services"][name]
        assert service["profiles"] == ["observability"]
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (ROOT / source).exists()


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs Prometheus's promtool")
def test_promtool_takes_configuration_and_rules():
    """Both files are valid for Prometheus's own checker."""
    for what, name in (("config", "prometheus.yml"), ("rules", "rules.yml")):
        done = subprocess.run(
            ["promtool", "check", what, FOLDER / name],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr


# -- a real Prometheus


class Prometheus:
    """A Prometheus process with our configuration, but other targets."""

    def __init__(self, folder, addresses):
        config = json.loads(json.dumps(CONFIG))
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(FOLDER / "rules.yml")]
        for scrape in config["scrape_configs"]:
            (lookup,) = scrape.pop("dns_sd_configs")
            found = [addresses[name] for name in lookup["names"] if name in addresses]
            scrape["static_configs"] = [{"targets": found}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.address = str(address_of_our_own())
        with (folder / "prometheus.log").open("wb") as log:
            self.popen = subprocess.Popen(
                [
                    *("prometheus", f"--config.file={folder / 'prometheus.yml'}"),
                    *(f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={self.address}"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ask(self, path, **parameters):
        """Return an answer of its API; None while it is not ready."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=120) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.SERVICE_UNAVAILABLE:
                return None
            raise
        except (urllib.error.URLError, ConnectionError) as error:
            if isinstance(error, ConnectionError) or isinstance(error.reason, ConnectionError):
                return None
            raise

    def query(self, expression):
        """Return the series that a query gives now."""
        answer = self.ask("query", query=expression)
        return answer and answer["result"]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory, wait_until):
    """Prometheus, which scrapes a cluster that trains."""
    if not shutil.which("prometheus"):
        pytest.skip("needs Prometheus")
    folder = tmp_path_factory.mktemp("scraped")
    with observed_cluster(folder) as cluster:
        names = {"manager": "manager", "ps": "ps", "worker": "worker 0", "worker-slow": "worker 1"}
        wait_until(lambda: all(map(cluster.metrics, names.values())), "the endpoints")
        running = Prometheus(folder, {host: cluster.metrics(name) for host, name in names.items()})
        try:
            wait_until(
                lambda: running.query("evenpace_shard_checkpoint_age_seconds > 0"), "a checkpoint", 240
            )
            yield running
        finally:
            end_process(running.popen)


@pytest.mark.ci
def test_a_real_prometheus_answers_every_query_of_the_dashboard(prometheus, wait_until):
    """All parts are scraped, and each panel has data while a job trains, but for those of faults."""
    wait_until(lambda: len(prometheus.query("up == 1") or ()) == 4, "four targets that are up")
    for title, expression in targets():
        asked = expression.replace("$job", JOB)
        if not any(quiet in asked for quiet in QUIET):
            wait_until(lambda asked=asked: prometheus.query(asked), f"data for {title}: {asked}")

    def states():
        """Return the job's states; none before Prometheus, which waits for 1 s, has the manager's metrics."""
        found = prometheus.query(f'evenpace_job_state{{job="{JOB}"}}') or ()
        return [series["metric"]["state"] for series in found]

    wait_until(lambda: states() == ["running"], "a job that runs, and is in no other state")


@pytest.mark.ci
def test_no_alert_fires_while_all_is_well(prometheus, wait_until):
    """Prometheus evaluates every rule without an error, and none fires in a run without faults."""

    def healths():
        """Return each rule's health; "unknown" until it was evaluated."""
        groups = prometheus.ask("rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    wait_until(lambda: (found := healths()) and "unknown" not in found.values(), "all rules' evaluation")
    assert healths() == {name: "ok" for name, _ in alerts()}
    assert not [alert for alert in prometheus.ask("alerts")["alerts"] if alert["state"] == "firing"]

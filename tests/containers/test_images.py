"""The images: who runs in them, what is in them, their health checks, how they stop."""

import pytest

from tests.containers.engine import IMAGES, Cluster, docker, frozen

pytestmark = [pytest.mark.containers, pytest.mark.slow]

OFTEN = ["--health-interval=1s", "--health-retries=1", "--health-start-period=0s"]


def health(container):
    """Return the engine's result of the image's health check."""
    return container.inspect("State.Health.Status")


def test_containers_are_healthy_and_not_root_and_stop_when_asked(tmp_path, wait_until):
    """Each part gets healthy, runs without root's rights, and ends by itself at a stop.

    A frozen parameter server, whose port still takes connections, shows in the worker's health.
    """
    with Cluster(tmp_path / "out", workers=2, options=OFTEN) as cluster:
        worker = cluster.start_worker("w0")  # waits for a second one
        parts = {"worker": worker, "ps": cluster.ps, "manager": cluster.manager}
        for name, container in parts.items():
            wait_until(lambda c=container: health(c) == "healthy", f"the health of {name}")
            user_ids = {line for line in container.run("cat", "/proc/1/status").splitlines() if "Uid" in line}
            assert user_ids == {"Uid:" + "\t10001" * 4}
        wait_until(lambda: frozen(cluster.ps.id), "the engine to freeze it")
        wait_until(lambda: health(worker) == "unhealthy", "the worker's unhealthiness")
        docker("unpause", cluster.ps.id)
        wait_until(lambda: health(worker) == "healthy", "the worker's health again")
        for name, container in parts.items():
            docker("stop", "--time", "30", container.id)
            # 130: a worker that is interrupted says so. 137 would be one that had to be killed.
            assert container.wait() == (130 if name == "worker" else 0)


@pytest.mark.parametrize("image", IMAGES.values())
def test_images_hold_what_runs_and_no_tools(image):
    """There are no compilers, no pip and no data; labels say what it is."""
    tools = (
        "for tool in cc gcc g++ make; do command -v $tool; done; ls /opt/evenpace/bin | grep ^pip; ls ~; true"
    )
    assert docker("run", "--rm", "--network=none", "--entrypoint=sh", image, "-c", tools) == ""
    title = docker("inspect", "--format", '{{index .Config.Labels "org.opencontainers.image.title"}}', image)
    assert title == "evenpace"

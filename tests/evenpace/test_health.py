"""`evenpace health` against real services, and against addresses without one."""

import contextlib
import socket

import pytest

from batchsize_manager.client import ManagerClient
from batchsize_manager.service import ManagerConfig, ManagerService
from evenpace.metrics.manager import manager_collector
from rpc.server import Security, Server, ServerLimits
from tests.evenpace.commands import invoke
from tests.services import MemberWorker, address_of_our_own, serving


def health(*arguments, timeout=60):
    """Run the command, which gives services `timeout` seconds."""
    return invoke("health", "--timeout", timeout, *arguments)


def test_services_are_called_at_their_places(manager, shard, tmp_path):
    """A command takes a list, or a file, wherever it takes a service's address; so does `evenpace doctor`."""
    file = tmp_path / "places"
    file.write_text(f"{manager}\n")
    places = ("--manager", f"@{file}", "--ps", f"{address_of_our_own()},{shard}")
    done = health(*places)
    assert (done.exit_code, done.output) == (0, "")
    looked = invoke("doctor", *places).output
    assert f"manager @{file}" in looked
    assert "cannot be reached" not in looked
    file.unlink()
    done = health(*places, timeout=0.5)
    assert done.exit_code == 1
    assert f"file of places '{file}': No such file or directory" in done.output


@pytest.mark.parametrize(("option", "other"), [("--manager", "shard"), ("--ps", "manager")])
def test_a_service_that_does_not_answer_is_not_healthy(request, option, other):
    """Where nothing listens, where a frozen service accepts connections, and where another kind is."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address in (f"127.0.0.1:{silent.getsockname()[1]}", str(address_of_our_own())):
            done = health(option, address, timeout=1)
            assert (done.exit_code, address in done.output) == (1, True)
    assert health(option, str(request.getfixturevalue(other))).exit_code == 1


def test_a_manager_whose_state_is_not_written_any_more_is_not_healthy(tmp_path, wait_until, monkeypatch):
    """The status is 1, with what to do; an event, which the page shows, and a metric say it, too."""

    def mistaken(changes):
        raise ValueError("a mistake")

    service = ManagerService(ManagerConfig(state=tmp_path))
    metrics = manager_collector(service, Server(service, ServerLimits(), Security()), 64)

    def behind():
        (family,) = (family for family in metrics.collect() if family.name == "evenpace_state_behind")
        return [sample.value for sample in family.samples]

    with serving(service) as address, contextlib.closing(MemberWorker(address, "job")) as worker:
        worker.iterate()
        assert (health("--manager", str(address)).exit_code, behind()) == (0, [0])
        monkeypatch.setattr("batchsize_manager.storage.state_writer.compact", mistaken)
        worker.iterate()
        with ManagerClient(address) as client:
            wait_until(
                lambda: any("not written to" in event.text for event in client.status("job").events),
                "an event",
            )
        done = health("--manager", str(address))
        assert done.exit_code == 1
        assert "is not written any more: start the manager again" in done.output
        assert behind() == [1]
        worker.iterate()


def test_nothing_to_check_is_a_mistake():
    """The command refuses to run without a service."""
    assert health().exit_code == 2

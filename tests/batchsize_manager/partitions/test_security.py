"""TLS and tokens between workers that exchange samples, and at their manager."""

import time

import pytest

import idl
from idl.errors import ConnectionLostError, InvalidRequestError, ProtocolError
from rpc import certificates
from rpc.address import Address
from rpc.client import Client
from rpc.credentials import Credentials
from rpc.server import Security
from rpc.tokens import TokenKeys, issue, write_new_key
from tests.scripts import hold_partition
from tests.scripts.hold_partition import SAMPLES
from tests.services import in_threads, partition_service, serving

_wire = idl.data_partition


@pytest.fixture(scope="module")
def secrets(tmp_path_factory):
    """Make a folder with certificates of a manager and a worker, a key of tokens, and tokens of two jobs."""
    folder = tmp_path_factory.mktemp("secrets")
    certificates.create_authority(folder, 10)
    for name in ("partitions", "worker"):  # others connect to either
        certificates.issue(folder, name, ["127.0.0.1"], 10)
    write_new_key(folder / "keys", add=False)
    for job in ("job", "another"):
        token = issue(TokenKeys(folder / "keys"), job, int(time.time()) + 3600)
        (folder / f"{job}.token").write_text(token)
    return folder


def credentials(secrets, job="job"):
    """Return a worker's credentials, with the token of a job."""
    return Credentials.of_folder(secrets / "worker", secrets / f"{job}.token")


@pytest.fixture
def manager(secrets):
    """A DataPartitionManager for two workers that asks for certificates and tokens."""
    security = Security(Credentials.of_folder(secrets / "partitions"), secrets / "keys")
    with serving(partition_service(2), security=security) as address:
        yield address


def test_samples_are_handed_over_by_tls(manager, secrets, wait_until):
    """Workers with certificates and tokens balance as usual; a peer without TLS is not listened to."""
    links = {}

    def make(number):
        links[number] = hold_partition.link(manager, number, SAMPLES, credentials=credentials(secrets))

    in_threads(lambda: make(0), lambda: make(1))
    try:
        for number, batch in ((0, 1), (1, 10)):
            hold_partition.drawn(links[number], 10 * batch, 0)
            hold_partition.drawn(links[number], 10 * batch, 19)
        wait_until(
            lambda: len(links[0]) < SAMPLES and sum(map(len, links.values())) == 2 * SAMPLES, "the move"
        )

        identity = idl.common.Identity("job", "w0", "unknown")
        request = _wire.TakeRequest(identity, "unknown", 1, [], [])
        address = links[1].address
        stranger = Client(_wire.PartitionPeer, address, "peer")
        with pytest.raises(ProtocolError, match="speaks TLS"):
            stranger.call("take", request)
        stranger.close()
    finally:
        in_threads(*(link.close for link in links.values()))


def test_other_machines_are_listened_to_with_tls_only(secrets):
    """Other machines need TLS, unless the user says that the network is trusted."""
    manager, listen = Address("127.0.0.1", 1), Address("192.0.2.1", 0)
    with pytest.raises(InvalidRequestError, match=r"192\.0\.2\.1:0 without TLS"):
        hold_partition.link(manager, 0, SAMPLES, listen=listen)
    for options in ({"insecure": True}, {"credentials": credentials(secrets)}):
        with pytest.raises(ConnectionLostError, match=r"cannot listen on 192\.0\.2\.1:0"):
            hold_partition.link(manager, 0, SAMPLES, listen=listen, **options)

"""Messages made from the IDL and broken on purpose, for services on real sockets and for the codec."""

import contextlib
import importlib.util
import itertools
import re
import socket
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import idl
from idl.errors import ProtocolError
from lab.attacks.inputs import Inputs
from rpc import codec
from rpc.limits import ServerLimits
from tests import ROOT
from tests.fuzz import messages
from tests.services import MemberWorker, Raw, ShardWorker, manager_service, serving, shard_service
from tests.wire import framed

PATIENT = ServerLimits(handshake_timeout=60.0, request_timeout=60.0)

services = pytest.mark.parametrize(
    ("definition", "service", "worker_type"),
    [
        (idl.batchsize_manager.BatchSizeManager, manager_service, MemberWorker),
        (idl.parameter_server.ParameterServer, shard_service, ShardWorker),
    ],
    ids=["manager", "shard"],
)


def thrown(address, inputs, cuts=()):
    """Send inputs over one connection, in pieces; return the answers' frames until the server closes it."""
    data = b"".join(one.data for one in inputs)
    places = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    with Raw(address) as raw:
        for begin, end in itertools.pairwise(places):
            raw.send(data[begin:end])
        with contextlib.suppress(OSError):
            raw.socket.shutdown(socket.SHUT_WR)
        answers = []
        while (answer := raw.read_frame()) is not None:
            answers.append(answer)
    return answers


@services
def test_no_message_meets_an_internal_error(definition, service, worker_type, caplog):
    """Every message of the IDL, valid or not, is taken or refused for a declared reason."""
    with serving(service(), PATIENT) as address:
        inputs = Inputs(definition, ("mallory", "mallory/x"), "internal")
        for _ in range(40):
            for answer in thrown(address, inputs.batch(12)):
                assert b"internal error" not in answer, caplog.text


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(messages.SERVICES),
    st.integers(0, 2**32),
    st.integers(0, 255),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=6),
)
def test_messages_are_decoded_or_refused(definition, seed, share, changes):
    """Messages of the IDL with some bytes changed are decoded or refused."""
    data = bytearray(Inputs(definition, ("a", "b/c"), str(seed)).batch(1)[0].data[4:])
    for place, value in changes:
        if data:
            data[place % len(data)] = value
    messages.take(bytes([share]) + data)


@pytest.mark.ci
def test_fuzzer_finds_nothing_in_bounded_time(tmp_path):
    """Coverage-guided inputs, started from messages of the IDL, are decoded or refused likewise."""
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed; it is in the extra `fuzz`")
    messages.write_corpus(tmp_path)
    # Not by libFuzzer's own limit, which takes the most that this process ever had for its child's.
    limited = [
        "sh",
        "-c",
        'ulimit -v 4000000 && exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "tests.fuzz.messages",
    ]
    command = [*limited, "-rss_limit_mb=0", "-runs=20000", "-seed=1", "-max_len=800"]
    done = subprocess.run([*command, str(tmp_path)], check=False, cwd=ROOT, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    runs = re.search(rb"^Done (\d+) runs", done.stderr, re.MULTILINE)
    assert int(runs[1]) >= 20000  # what follows from an input may come on top


def test_what_the_fuzzer_calls_sees_a_broken_invariant(monkeypatch):
    """The check that the fuzzer calls fails where a message is not re-encoded as it was."""
    right = framed("history", idl.batchsize_manager.HistoryRequest("a", 0, 1))[4:]
    encode = codec.encode
    monkeypatch.setattr(codec, "encode", lambda header, body: encode(header, body)[:-1] + b"\x01")
    with pytest.raises(ProtocolError):
        messages.take(b"\xff" + right)

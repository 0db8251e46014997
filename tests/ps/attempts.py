"""A worker of a shard that takes part in recoveries: it names its attempt in each call."""

import time
import uuid

import numpy as np

import idl
from rpc.client import Client
from tests.services import ShardWorker, open_request

_ps = idl.parameter_server


class AttemptWorker(ShardWorker):
    """A worker that names its attempt, and the shard process that it relies on, in each call.

    Args:
        address: The shard's.
        elements: How many parameters.
        name: The job's; drawn if left out.
        initialise: Whether it sets the parameters, if nobody has.
        shared: Whether other shards have parts of its gradients.
        worker: Its own name.
    """

    def __init__(self, address, elements=1000, name=None, initialise=True, *, shared=None, worker="good"):
        # Unlike a stock client, it opens a job that may be in a later attempt.
        self.address, self.elements = address, elements
        self.identity = idl.common.Identity(name or f"job-{uuid.uuid4().hex}/run", worker, uuid.uuid4().hex)
        self.shared = shared
        self.client = Client(_ps.ParameterServer, address, "shard", call_timeout=30)
        self.version = 0
        self.expected = np.zeros(elements, dtype=np.float32)
        opened = self.open()
        if initialise and not opened.initialised:
            self.initialise(self.attempt)

    def open(self):
        """Open the job, and return the shard's answer."""
        opened = self.client.call("open", open_request(self.identity, self.elements))
        self.attempt, self.instance = opened.attempt, opened.instance
        return opened

    def initialise(self, attempt):
        """Set the parameters to 0, and return whether they were accepted."""
        request = _ps.InitialiseRequest(self.identity, self.version, attempt=attempt)
        return self.client.call("initialise", request, bulk=self.expected.data.cast("B")).accepted

    def push_request(self, start=0, count=8, total=8):
        """Make a push request as of any worker, with the attempt."""
        request = super().push_request(start, count, total)
        request.assignment.attempt, request.instance = self.attempt, self.instance
        request.shared = self.shared
        return request

    def fence(self, attempt, manager=None):
        """Begin an attempt, and return the shard's answer."""
        return self.client.call("fence", _ps.FenceRequest(self.identity, attempt, manager=manager))

    def rewind(self, attempt, version):
        """Go on from a version in an attempt."""
        reply = self.client.call("rewind", _ps.RewindRequest(self.identity, attempt, version))
        self.attempt, self.instance, self.version = attempt, reply.instance, version

    def pull(self, version, client=None):
        """Return the parameters of a version."""
        into = np.empty(self.elements, dtype=np.float32)
        request = _ps.PullRequest(self.identity, version, None, self.attempt, self.instance)
        (client or self.client).call("pull", request, into=into.data.cast("B"))
        return into

    def pull_once(self, version, **more):
        """Ask once for the parameters of a version."""
        into, deadline = np.empty(self.elements, dtype=np.float32), time.monotonic() + 240
        request = _ps.PullRequest(self.identity, version, None, self.attempt, self.instance, **more)
        self.client.send("pull", request, deadline=deadline)
        self.client.receive(into=into.data.cast("B"), deadline=deadline)

    def check(self):
        """Pull, and check that the parameters are the expected ones to the last bit."""
        np.testing.assert_array_equal(self.pull(self.version), self.expected)

"""A shard knows which part of the parameters it holds, and refuses to be taken for another."""

import pytest

import idl
from idl.errors import InvalidRequestError
from idl.layout import Part
from idl.translation import wire_part
from tests.ps.attempts import AttemptWorker
from tests.services import open_request, serving, shard_service

_ps = idl.parameter_server
FIRST, SECOND = Part(0, 2, 0), Part(1, 2, 1000)


class PartWorker(AttemptWorker):
    """A worker that names a part in each call."""

    part = FIRST

    def open(self):
        """Open the job as a shard of that part."""
        request = open_request(self.identity, self.elements, part=wire_part(self.part))
        opened = self.client.call("open", request)
        self.attempt, self.instance = opened.attempt, opened.instance
        return opened

    def push_request(self, **span):
        """Make a push request as of any worker, for the part."""
        request = super().push_request(**span)
        request.part = wire_part(self.part)
        return request

    def fence(self, attempt):
        """Begin an attempt for the part."""
        return self.client.call("fence", _ps.FenceRequest(self.identity, attempt, wire_part(self.part)))

    def calls(self):
        """Yield each call that names a part, in an order in which they can be made; all may be repeated."""
        yield self.open
        yield self.push
        yield lambda: self.pull_once(self.version, part=wire_part(self.part))
        yield lambda: self.fence(self.attempt)


def assert_refused(worker, part):
    """Check that every call for another part is refused with both, and that the one for its own are not."""
    own, worker.part = worker.part, part
    for call in worker.calls():
        with pytest.raises(InvalidRequestError, match=f"holds {own},.* takes it for {part}:"):
            call()
    worker.part = own
    for call in worker.calls():
        call()


def test_a_call_for_another_part_is_refused():
    """The error names both parts; calls for the shard's own are served before and after."""
    with serving(shard_service()) as address:
        worker = PartWorker(address)
        worker.iterate()
        for part in (SECOND, Part(0, 3, 0), Part(0, 2, 1)):
            assert_refused(worker, part)
        worker.close()


def test_who_names_no_part_is_served_by_any():
    """A stock client may leave the part out; the first to name one decides."""
    with serving(shard_service()) as address:
        stock = AttemptWorker(address)
        stock.iterate()
        worker = PartWorker(address, name=stock.identity.job, initialise=False)
        stock.push()
        worker.part = SECOND
        with pytest.raises(InvalidRequestError, match=f"holds {FIRST}"):
            worker.open()
        for client in (stock, worker):
            client.close()

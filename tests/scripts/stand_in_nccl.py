"""A stand-in for NCCL's process group, on CPUs: what evenpace needs of its documented behaviour, no more.

As with NCCL, operations are done in order by something else than the calling thread; `abort`, called by any
thread, ends those under way without an error and leaves anything in their tensors; later calls raise, and so
does `Work.wait` after an error that came meanwhile. Bytes go by way of the store.
"""

import math
import queue
import threading
import time
from collections import deque
from functools import partial

import torch
from torch import distributed
from torch._C._distributed_c10d import Work
from torch.distributed import Backend, ReduceOp

from worker.torch import formed_group

NAME = "stand_in"


class StandInWork(Work):
    """An operation under way."""

    def __init__(self, filled, result):
        super().__init__()
        self._filled, self._result = filled, result
        self._future = torch.futures.Future()
        self._lock = threading.Lock()
        self.error = None

    def end(self, put=None, error=None):
        """End it unless it has ended: by putting what has come, or else with anything in its tensors.

        Of an error only `wait` tells.
        """
        with self._lock:
            if self._future.done():
                return
            self.error = error
            if put is not None:
                put()
            else:
                for tensor in self._filled:
                    tensor.fill_(math.nan if tensor.is_floating_point() else 0)
            self._future.set_result(self._result)

    def is_completed(self):
        """Return whether it has ended, by whatever."""
        return self._future.done()

    def wait(self, timeout=None):
        """Wait for its end."""
        self._future.wait()
        if self.error is not None:
            raise RuntimeError(self.error)
        return True

    def get_future(self):
        """Return the future of its tensors."""
        return self._future


class StandInGroup(distributed.ProcessGroup):
    """The process group."""

    def __init__(self, store, rank, size, timeout=None):
        super().__init__(rank, size)
        self._store, self._rank, self._size = store, rank, size
        self._aborted = threading.Event()
        self._queue = queue.SimpleQueue()
        self._number = 0
        self._works = deque(maxlen=64)
        threading.Thread(target=self._run, daemon=True).start()

    def getBackendName(self):
        """Return its name."""
        return NAME

    def _get_backend(self, device):
        return self

    def shutdown(self):
        """Refuse to wait for others, as NCCL would."""
        assert self._aborted.is_set() or self._size == 1

    def abort(self):
        """End all operations."""
        self._aborted.set()
        for work in list(self._works):
            work.end()

    def allreduce(self, tensors, opts=None):
        """Sum over the ranks."""
        assert opts.reduceOp == ReduceOp.SUM

        def put(parts):
            tensors[0].copy_(sum(part.clone() for part in parts))

        return self._begin(tensors[0], put, tensors, tensors)

    def broadcast(self, tensors, opts):
        """Take a rank's."""
        return self._begin(tensors[0], lambda parts: tensors[0].copy_(parts[opts.rootRank]), tensors, tensors)

    def allgather(self, outputs, tensors, opts=None):
        """Take all ranks'."""

        def put(parts):
            for output, part in zip(outputs[0], parts, strict=True):
                output.copy_(part)

        return self._begin(tensors[0], put, outputs[0], outputs)

    def _begin(self, given, put, filled, result):
        if self._aborted.is_set():
            raise RuntimeError("the communicator was aborted")
        work = StandInWork(filled, result)
        self._works.append(work)
        self._queue.put((given, put, work))
        if self._aborted.is_set():
            work.end()
        return work

    def _run(self):
        while True:
            given, put, work = self._queue.get()
            self._number += 1
            try:
                parts = self._exchange(given)
            except RuntimeError as lost:  # the store is gone with its rank
                work.end(error=f"remote process exited: {lost}")
            else:
                work.end(None if parts is None else partial(put, parts))

    def _exchange(self, given):
        """Return all ranks' tensors; None once it was aborted."""
        keys = [f"{self._number}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], given.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        while not self._store.check(keys):
            if self._aborted.is_set():
                return None
            time.sleep(0.0005)
        values = [bytearray(self._store.get(key)) for key in keys]
        if self._number > 2:  # all have gone through that one
            self._store.delete_key(f"{self._number - 2}/{self._rank}")
        return [torch.frombuffer(value, dtype=given.dtype).view(given.shape) for value in values]


def register():
    """Make it a backend of torch's, of which groups can be formed."""
    Backend.register_backend(NAME, StandInGroup, devices=["cpu"])
    formed_group.BACKENDS.add(NAME)

"""An exchange of workers that are threads of one process, with gradients and parameters in its memory."""

import threading
from collections import Counter

import numpy as np

from idl.exchange import PARAMETER_SERVER
from worker.gradient import Gradient
from worker.gradient_norms import OwnNorms


class Memory:
    """What the workers of a job share: parameters by version, and the gradient of the next step.

    Args:
        timeout: Seconds for which the other workers may keep one waiting.
    """

    def __init__(self, rate, timeout=60.0):
        self.versions = {}
        self._rate = rate
        self._timeout = timeout
        self._sums = {}  # by iteration, gradients weighted by samples
        self._samples = Counter()  # by iteration
        self._change = threading.Condition()

    def begin(self, version, parameters):
        """Set the parameters to start from, unless another worker has."""
        with self._change:
            self.versions.setdefault(version, parameters)

    def add(self, part, gradient):
        """Add the mean gradient of a slice; the last one of a batch makes a step."""
        with self._change:
            iteration = part.iteration
            self._sums[iteration] = self._sums.get(iteration, 0.0) + part.count * gradient
            self._samples[iteration] += part.count
            assert self._samples[iteration] <= part.total
            if self._samples[iteration] == part.total:
                step = self._rate * self._sums.pop(iteration) / part.total
                self.versions[iteration + 1] = self.versions[iteration] - step
                self._change.notify_all()

    def wait(self, version):
        """Wait for a version of the parameters, and return it."""
        with self._change:
            assert self._change.wait_for(lambda: version in self.versions, self._timeout)
            return self.versions[version]


class MemoryExchange:
    """One worker's part; as an adapter sees it, like that of a parameter server."""

    kind = PARAMETER_SERVER  # as far as the manager is concerned
    loader_finishes = False
    digest = None
    reconnects = 0

    def __init__(self, memory):
        self.gradient = None
        self.parameters = np.empty(0)
        self.closed = False
        self._memory = memory
        self._initial = None

    def prepare(self, layout, initial):
        """Set what the job starts from."""
        self.gradient, self._initial = Gradient(layout, False, OwnNorms()), initial

    def joined(self, joined, identity, host):
        """Take the manager's answer, of which nothing is needed."""

    def open(self, assignment, first):
        """Start from the first worker's parameters."""
        self._memory.begin(first, self._initial)

    def contribute(self, done, groups, lr_scale):
        """Add the gradient."""
        if done.count:
            self._memory.add(done, self.gradient.values)

    def take(self, assignment):
        """Wait for the parameters."""
        self.parameters = self._memory.wait(assignment.iteration)

    def settle(self, done):
        """Do nothing: what was added counts."""

    def forfeit(self, lost):
        """Do nothing: other workers add what was lost."""

    def fence(self, attempt):
        """Do nothing: there is one attempt."""

    def recover(self, manager, error, first):
        """Give up: there is one attempt."""
        raise error

    def abandon(self, error):
        """Do nothing: nobody waits for long."""

    def close(self):
        """Note it."""
        self.closed = True

"""One simulated job: its training on the devices that it has, second by second.

This module must not know of other jobs or of policies.
"""

from functools import partial

from scheduler.allocation import Placement, devices, shape
from scheduler.goodput import Goodput
from scheduler.job import Job
from scheduler.simulator.applications import Application
from scheduler.simulator.learning import Learner
from scheduler.simulator.record import Life
from scheduler.simulator.rules import MOST_DEVICES, Rules
from scheduler.simulator.workloads import Arrival


class SimulatedJob:
    """A job that has arrived.

    Attributes:
        life: What has happened to it.
    """

    def __init__(
        self,
        arrival: Arrival,
        application: Application,
        rules: Rules,
        *,
        asks_devices: bool = False,
        asks_batch: bool = False,
    ) -> None:
        """Make a job that waits.

        Args:
            arrival: Its submission.
            application: The model that it trains.
            rules: The cost of a change.
            asks_devices: Let it have at most the number of devices of its submission.
            asks_batch: Let it train with the batch of its submission.
        """
        self.life = Life(arrival.name, application.name, arrival.submitted)
        self._application = application
        self._rules = rules
        self._weight = arrival.priority
        self._devices = arrival.devices if asks_devices else None
        self._batch = arrival.batch if asks_batch else application.limits.batch
        self._placement: Placement = ()
        self._shape: tuple[int, ...] = ()
        self._local = self._accumulations = 0
        # With a batch of the user's nobody asks for a goodput.
        self._learner = None if asks_batch else Learner(application.batches, self._batch)
        self._configured: tuple[Goodput | None, tuple[int, ...]] | None = None
        self._pause = 0
        self._trained = 0  # seconds
        self._lost = 0  # seconds of training that are to be done again
        self._progress = 0.0

    @property
    def most_devices(self) -> int:
        """The most devices that it can use, once it has learned of so many."""
        model = self._application
        if self._devices is not None:
            return self._devices
        most = [model.limits.most_devices or MOST_DEVICES]
        if self._batch is not None:
            most.append(self._batch // model.batches.least_local)
        if self._learner is not None:
            most.append(model.batches.largest // model.batches.least_local)
        return min(most)

    def seen(self, now: int, kind: str, node: int) -> Job:
        """Return the job as a policy sees it.

        Args:
            now: Seconds on the cluster's clock.
            kind: The kind of the cluster's devices.
            node: Devices of a node, for the time that is left on packed nodes.
        """
        goodput = None if self._learner is None else self._learner.goodput
        return Job(
            name=self.life.name,
            submitted=self.life.submitted,
            age=now - self.life.submitted,
            most_devices=self._most_devices(),
            weight=self._weight,
            attained=self.life.device_seconds,
            restarts=self.life.restarts,
            devices=self._devices,
            batch=self._batch,
            goodputs={} if goodput is None else {kind: goodput},
            seconds_left=None if self._batch is None else partial(self._seconds_left, self._batch, node),
        )

    def place(self, placement: Placement, now: int) -> None:
        """Change the placement; training goes on after a pause, if there are devices.

        Args:
            placement: The devices from now on; none to wait, with what is left of a pause.
            now: Seconds on the cluster's clock.
        """
        self._placement, self._shape = placement, shape(placement)
        self.life.placements.append((now, placement))
        if not placement:
            return
        self._configure(now)
        self._pause = self._rules.restart_cost
        if self.life.started is None:
            self.life.started = now
        else:
            self.life.restarts += 1

    def lose_devices(self, now: int) -> None:
        """Wait, since a node was lost; training since the last checkpoint is to be done again."""
        if self._rules.checkpoint:
            self._lost += self._trained % self._rules.checkpoint
            self._trained -= self._trained % self._rules.checkpoint
        self.life.losses += 1
        self.place((), now)

    def advance(self, now: int, seconds: int, slowdown: float = 0.0) -> None:
        """Train for some time.

        Args:
            now: Seconds on the cluster's clock when the time begins.
            seconds: Length of the time.
            slowdown: Share of the progress that is lost.

        Raises:
            ValueError: Nothing was measured that tells the step time.
        """
        if not self._placement:
            return
        replicas = devices(self._placement)
        paused = min(self._pause, seconds)
        self._pause -= paused
        again = min(self._lost, seconds - paused)
        self._lost -= again
        used = paused + again
        while used < seconds and self.life.ended is None:
            goodput = self._goodput(replicas) * (1 - slowdown)
            end = self._application.epoch_end(len(self.life.epochs))
            if self._progress + goodput * (seconds - used) < end:
                self._progress += goodput * (seconds - used)
                used = seconds
            else:
                used += round((end - self._progress) / goodput)
                self._progress = end
                self.life.epochs.append(now + used)
                if len(self.life.epochs) == self._application.epochs:
                    self.life.ended = now + used
            self._configure(now + used)
        self._trained += used - paused
        self.life.device_seconds += used * replicas

    def _goodput(self, replicas: int) -> float:
        """Return the progress in a second, in initial batches, and learn from it."""
        model, epoch = self._application, len(self.life.epochs)
        total = self._total(replicas)
        step_time = model.step_time(self._shape, self._local)
        if self._learner is not None:
            noise = model.noise(total, epoch)
            self._learner.observe(len(self._shape), replicas, self._local, step_time, noise)
        step, sync = step_time
        return model.gain(total, epoch) / (step + self._accumulations * (step - sync))

    def _configure(self, now: int) -> None:
        """Choose the batch by the devices that there are and by what has been learned."""
        goodput = None if self._batch or self._learner is None else self._learner.goodput
        if self.life.ended is not None or self._configured == (goodput, self._shape):
            return
        self._configured = goodput, self._shape
        batches, replicas = self._application.batches, devices(self._placement)
        if goodput is not None:
            _, local, accumulations = goodput.best(len(self._shape), replicas)
        else:
            batch = self._batch or max(batches.initial, batches.least_local * replicas)
            local, accumulations = batches.share(batch, replicas)
        self._local, self._accumulations = int(local), int(accumulations)
        total = self._total(replicas)
        if not self.life.batches or self.life.batches[-1][1] != total:
            self.life.batches.append((now, total))

    def _total(self, replicas: int) -> int:
        return replicas * self._local * (self._accumulations + 1)

    def _most_devices(self) -> int:
        if self._devices is not None or self._learner is None:
            return self.most_devices
        return min(self.most_devices, max(2 * self._learner.most_replicas, 1))

    def _seconds_left(self, batch: int, node: int, replicas: int) -> float:
        model = self._application
        return model.packed_iteration(batch, replicas, node) * model.iterations_left(
            batch, len(self.life.epochs)
        )

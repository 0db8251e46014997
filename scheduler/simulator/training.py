"""One simulated job: its training on the devices that it has, second by second.

This module must not know of other jobs or of policies.
"""

from functools import partial

from scheduler.allocation import Placement, devices, shape
from scheduler.job import Job
from scheduler.simulator.applications import Application, Configuration
from scheduler.simulator.record import Life
from scheduler.simulator.rules import MOST_LEARNING_DEVICES, Rules
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
            asks_devices: Let it have the number of devices of its submission only.
            asks_batch: Let it train with the batch of its submission.
        """
        self.life = Life(arrival.name, application.name, arrival.submitted)
        self._application = application
        self._restart_cost = rules.restart_cost
        self._devices = arrival.devices if asks_devices else None
        self._batch = arrival.batch if asks_batch else application.limits.batch
        self._placement: Placement = ()
        self._shape: tuple[int, ...] = ()
        self._configuration = Configuration(0, 0)
        self._pause = 0
        self._progress = 0.0

    def seen(self, now: int, node: int) -> Job:
        """Return the job as a policy sees it.

        Args:
            now: Seconds on the cluster's clock.
            node: Devices of a node, for the time that is left on packed nodes.
        """
        return Job(
            name=self.life.name,
            submitted=self.life.submitted,
            age=now - self.life.submitted,
            most_devices=self._most_devices(),
            attained=self.life.device_seconds,
            restarts=self.life.restarts,
            devices=self._devices,
            batch=self._batch,
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
        self._pause = self._restart_cost
        if self.life.started is None:
            self.life.started = now
        else:
            self.life.restarts += 1

    def advance(self, now: int, seconds: int) -> None:
        """Train for some time.

        Args:
            now: Seconds on the cluster's clock when the time begins.
            seconds: Length of the time.

        Raises:
            ValueError: Nothing was measured that tells the step time.
        """
        if not self._placement:
            return
        replicas = devices(self._placement)
        paused = min(self._pause, seconds)
        self._pause -= paused
        used = paused
        while used < seconds and self.life.ended is None:
            goodput = self._goodput(replicas)
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
        self.life.device_seconds += used * replicas

    def _goodput(self, replicas: int) -> float:
        """Return the progress in a second, in initial batches, and learn from it (Pollux, 3)."""
        model, (local, accumulation) = self._application, self._configuration
        total = self._configuration.total(replicas)
        scale = total / model.initial
        step, sync = model.step_time(self._shape, local)
        sqr, var = model.noise(total, len(self.life.epochs))
        gain = (var + sqr) / (var / scale + sqr)
        return gain / (step + accumulation * (step - sync))

    def _configure(self, now: int) -> None:
        """Choose the batch for the devices that there are."""
        if self.life.ended is not None:
            return
        model, replicas = self._application, devices(self._placement)
        batch = self._batch
        if batch is None:
            batch = max(model.initial, model.least_local * replicas)
        self._configuration = model.configuration(batch, replicas)
        total = self._configuration.total(replicas)
        if not self.life.batches or self.life.batches[-1][1] != total:
            self.life.batches.append((now, total))

    def _most_devices(self) -> int:
        model = self._application
        most = model.limits.most_devices or MOST_LEARNING_DEVICES
        if self._devices is not None:
            return self._devices
        if self._batch is not None:
            return min(model.limits.most_devices or self._batch, self._batch // model.least_local)
        return most

    def _seconds_left(self, batch: int, node: int, replicas: int) -> float:
        model = self._application
        return model.packed_iteration(batch, replicas, node) * model.iterations_left(
            batch, len(self.life.epochs)
        )

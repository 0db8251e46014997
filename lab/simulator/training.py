"""One simulated job: its training on the devices that it has, second by second.

This module must not know of other jobs or of policies.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from lab.simulator.applications import Application
from lab.simulator.learning import Learner
from lab.simulator.record import Life
from lab.simulator.rules import MOST_DEVICES, Rules
from lab.simulator.workloads import Arrival
from scheduler.allocation import Placement, devices, shape
from scheduler.goodput import Goodput
from scheduler.job import Job
from scheduler.policies.base import Policy


class SimulatedJob:
    """A job that has arrived, and waits; the policy says which of devices and batch are the user's choice."""

    def __init__(
        self, arrival: Arrival, application: Application, rules: Rules, policy: Policy | type[Policy] = Policy
    ) -> None:
        self.life = Life(arrival.name, application.name, arrival.submitted)  # what has happened to it
        self._application = application
        self._rules = rules
        self._weight = arrival.priority
        limits = application.limits
        self._restart_cost = limits.restart_cost if rules.restart_cost is None else rules.restart_cost
        self._expected_cost = limits.expected_cost if rules.restart_cost is None else rules.restart_cost
        self._devices = arrival.devices if policy.users_choose_devices else None
        self._asked = arrival.devices, arrival.batch
        self._batch = arrival.batch if policy.users_choose_batch else limits.batch
        self._placement: Placement = ()
        self._kind: str | None = None
        self._shape: tuple[int, ...] = ()
        self._local = self._accumulations = 0
        # With a batch of the user's nobody asks for a goodput.
        self._learner: Learner | None = None
        if not policy.users_choose_batch:
            known, noise = {}, None
            if rules.profiled:
                known = {kind: application.throughput(kind) for kind in application.batches}
                noise = application.first_noise
            self._learner = Learner(application.batches, self._batch, known, noise)
        self._configured: tuple[Goodput | None, str, tuple[int, ...]] | None = None
        self._planned: dict[str, tuple[Goodput, Goodput]] = {}
        self._largest: int | None = None
        if policy.users_limit_batch:
            self._largest = max(limits.largest or arrival.batch, application.initial)
        self._pause = 0
        self._trained = 0  # seconds
        self._lost = 0  # seconds of training that are to be done again
        self._progress = 0.0

    def most_devices_of(self, kind: str) -> int:
        """Return the most devices of a kind that it can use, once it has learned of so many."""
        batches, limits = self._application.batches[kind], self._application.limits
        if self._devices is not None:
            return self._devices
        most = [limits.most_devices or MOST_DEVICES]
        if self._batch is not None:
            most.append(self._batch // batches.least_local)
        if self._learner is not None:
            most.append(batches.largest // batches.least_local)
        return min(most)

    def seen(self, now: int, nodes: Mapping[str, int]) -> Job:
        """Return the job as a policy sees it; a node has devices, for step times on packed nodes, by kind."""
        seconds_left = None
        if self._batch is not None and len(nodes) == 1:
            ((kind, node),) = nodes.items()
            seconds_left = partial(self._seconds_left, kind, self._batch, node)
        return Job(
            name=self.life.name,
            submitted=self.life.submitted,
            age=now - self.life.submitted,
            most_devices=max(map(self._most_devices_of, self._application.batches)),
            weight=self._weight,
            attained=self.life.device_seconds,
            restarts=self.life.restarts,
            restart_cost=float(self._expected_cost),
            paused=self._pause > 0 and bool(self._placement),
            devices=self._devices,
            batch=self._batch,
            goodputs=self._goodputs(),
            speeds=self._application.single_speeds,
            seconds_left=seconds_left,
            iterations_per_second=partial(self._iterations_per_second, nodes),
        )

    def place(self, placement: Placement, now: int, kind: str) -> None:
        """Change the placement; training goes on after a pause, if there are devices.

        Without any the job waits, with what is left of a pause.
        """
        before = self._kind, self._shape
        self._placement, self._shape = placement, shape(placement)
        self._kind = kind if placement else None
        self.life.placements.append((now, placement))
        if not placement or (self._rules.free_moves and before == (kind, self._shape)):
            return
        self._configure(now)
        self._pause = self._restart_cost
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
        self.place((), now, "")

    def advance(self, now: int, seconds: int, slowdown: float = 0.0) -> None:
        """Train for some seconds from `now` on, with a share of the progress lost."""
        if not self._placement:
            return
        replicas = devices(self._placement)
        paused = min(self._pause, seconds)
        self._pause -= paused
        again = min(self._lost, seconds - paused)
        self._lost -= again
        used = paused + again
        while used < seconds and self.life.ended is None:
            goodput = self._progress_rate(replicas) * (1 - slowdown)
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

    def _progress_rate(self, replicas: int) -> float:
        """Return the progress in a second, in initial batches, and learn from it."""
        model, epoch, kind = self._application, len(self.life.epochs), self._kind
        assert kind is not None
        total = self._total(replicas)
        step_time = model.step_time(kind, self._shape, self._local)
        if self._learner is not None:
            noise = model.noise(total, epoch)
            self._learner.observe(kind, len(self._shape), replicas, self._local, step_time, noise)
        step, sync = step_time
        return model.gain(total, epoch) / (step + self._accumulations * (step - sync)) / model.limits.slowdown

    def _configure(self, now: int) -> None:
        """Choose the batch by the devices that there are and by what has been learned."""
        kind, model = self._kind, self._application
        assert kind is not None
        goodput = None if self._batch or self._learner is None else self._learner.goodput(kind)
        if self.life.ended is not None or self._configured == (goodput, kind, self._shape):
            return
        self._configured = goodput, kind, self._shape
        batches, replicas = model.batches_at(kind, self._shape), devices(self._placement)
        if goodput is not None:
            _, local, accumulations = replace(goodput, limits=batches).best(len(self._shape), replicas)
        else:
            batch = self._batch or max(batches.initial, batches.least_local * replicas)
            local, accumulations = batches.share(batch, replicas)
        self._accumulations = int(accumulations)
        self._local = model.fitting(kind, replicas, int(local), self._accumulations)
        total = self._total(replicas)
        if not self.life.batches or self.life.batches[-1][1] != total:
            self.life.batches.append((now, total))

    def _total(self, replicas: int) -> int:
        return replicas * self._local * (self._accumulations + 1)

    def _most_devices_of(self, kind: str) -> int:
        most = self.most_devices_of(kind)
        if self._devices is not None or self._learner is None or self._learner.knows(kind):
            return most
        return min(most, max(2 * self._learner.most_replicas(kind), 1))

    def _goodputs(self) -> Mapping[str, Goodput]:
        """Return the goodputs that a policy sees, the same objects until something new was learned."""
        if self._learner is None:
            return {}
        goodputs = self._learner.goodputs
        if self._largest is None:
            return goodputs
        for kind, goodput in goodputs.items():
            if kind not in self._planned or self._planned[kind][0] is not goodput:
                limits = replace(goodput.limits, largest=self._largest)
                self._planned[kind] = goodput, replace(goodput, limits=limits)
        return {kind: self._planned[kind][1] for kind in goodputs}

    def _iterations_per_second(self, nodes: Mapping[str, int], kind: str) -> float:
        model, (number, batch) = self._application, self._asked
        return 1 / (model.packed_iteration(kind, batch, number, nodes[kind]) * model.limits.slowdown)

    def _seconds_left(self, kind: str, batch: int, node: int, replicas: int) -> float:
        model = self._application
        return model.packed_iteration(kind, batch, replicas, node) * model.iterations_left(
            batch, len(self.life.epochs)
        )

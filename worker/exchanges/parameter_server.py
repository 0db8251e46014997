"""The exchange by a parameter server, whose shards add up gradients, step, and give out parameters.

An adapter calls `prepare`, fills `gradient` in each iteration, and gets `parameters`. This module knows no
framework.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

import idl
from idl.errors import EvenpaceError, InvalidRequestError, NotMemberError, RewoundError, UnavailableError
from idl.exchange import PARAMETER_SERVER
from idl.layout import Group, Layout
from idl.plan import Assignment
from idl.synchronisation import Synchronisation
from rpc.field_log import FieldLog
from worker.buckets import Bucket, NoteReady
from worker.exchanges.base import Exchange
from worker.gradient import Gradient
from worker.gradient_norms import OwnNorms
from worker.job_recovery import recover
from worker.learning_rates import scaled
from worker.membership import Membership
from worker.messages import Joined
from worker.meter import Meter
from worker.optimizer_state import OptimizerState
from worker.shard_clients import Calls, GrowingPush, ShardClients
from worker.step_options import StepOptions
from worker.untrained import Untrained
from worker.weights import Weights

log = FieldLog(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class _Prepared:
    """What a job starts from at the parameter server, and who gets its parameters."""

    layout: Layout
    initial: NDArray[Any]
    state: OptimizerState | None
    deliver: Callable[[], None]
    untrained: Untrained | None


@dataclass(frozen=True)
class _Begun:
    """A push that was begun before its gradient was complete."""

    part: Assignment
    options: Sequence[Group] | None
    push: GrowingPush
    ready: NoteReady


@dataclass(frozen=True)
class _EarlyPull:
    """A pull of the parameters of an attempt's iteration, before the shards have all gradients for them."""

    attempt: int
    iteration: int
    calls: Calls


class ParameterServer(Exchange):
    """One worker's part in the exchange by a parameter server.

    Args:
        meter: Is told the times of transfers, and of waiting for the other workers.
        weights: What this worker's gradients are means over.
        timeout: Seconds for a recovery.
        log: A logger whose fields all log lines get.
    """

    kind = PARAMETER_SERVER
    loader_finishes = False

    def __init__(
        self,
        shards: ShardClients,
        norms: OwnNorms,
        meter: Meter,
        weights: Weights,
        timeout: float,
        log: FieldLog = log,
    ) -> None:
        self._shards = shards
        self._norms = norms
        self._meter = meter
        self._weights = weights
        self._timeout = timeout
        self._log = log
        self._synchronisation = Synchronisation()
        self._lost: Sequence[Any] = ()  # slices that were lost before this worker joined
        self._prepared: _Prepared | None = None
        self._options = StepOptions()
        self._gradient: Gradient | None = None
        self._parameters: NDArray[Any] = np.empty(0)
        self._taken: tuple[int, int] | None = None  # attempt and iteration that `parameters` are for
        self._lacks_untrained = False
        self._refused = -1  # the last iteration whose gradient a shard refused
        self._spare: NDArray[Any] = np.empty(0)  # (elements,) that an early pull fills
        self._early_pull: _EarlyPull | None = None
        self._begun: _Begun | None = None
        self._given_up: RewoundError | None = None  # why a transfer was, until the iteration is repeated

    @classmethod
    def of(cls, exchange: Exchange) -> "ParameterServer":
        """Return a session's exchange, if it is a parameter server.

        Raises:
            InvalidRequestError: It is another one.
        """
        if not isinstance(exchange, cls):
            raise InvalidRequestError("this session has no parameter server: name one with `ps`")
        return exchange

    @property
    def gradient(self) -> Gradient:
        """The gradient that is contributed next; to be filled before that.

        Raises:
            InvalidRequestError: The training has not begun.
        """
        if self._gradient is None:
            raise InvalidRequestError("there is no gradient before the training has begun")
        return self._gradient

    @property
    def shards(self) -> int:
        """The number of shards."""
        return self._shards.number

    @property
    def parameters(self) -> NDArray[Any]:
        """The parameters as last pulled, (elements,): one of two arrays, which take turns."""
        return self._parameters

    @property
    def versions(self) -> Sequence[int]:
        """The version of each shard's part of the parameters; see `ShardClients.versions`."""
        return self._shards.versions

    @property
    def digest(self) -> str | None:
        """A text by which workers agree on the shards that they use; None before the first pull."""
        return self._shards.instances_digest if self._taken is not None else None

    @property
    def reconnects(self) -> int:
        """How often a connection was made again; may be read by any thread."""
        return self._shards.reconnects

    def check_unprepared(self) -> None:
        """Check that `prepare` may be called, before an adapter changes anything.

        Raises:
            InvalidRequestError: It was called before.
        """
        if self._prepared is not None:
            raise InvalidRequestError(
                "`distribute` was called before in this session: a job has one optimiser at the parameter "
                "server, so give one optimiser the parameters of all models, and distribute it once; where "
                "each model needs an optimiser of its own, leave out `ps` and train by torch.distributed"
            )

    def prepare(
        self,
        layout: Layout,
        initial: NDArray[Any],
        state: OptimizerState | None = None,
        deliver: Callable[[], None] = lambda: None,
        untrained: Untrained | None = None,
    ) -> None:
        """Set what the job starts from; to be called once, before `Session.start_training`.

        Args:
            layout: The parameters' layout, the same for every worker.
            initial: (elements,); the job starts from the parameters of the first worker.
            state: The optimiser's state, likewise.
            deliver: Called whenever the model is to have `parameters`: when they have new values, and before
                an iteration's further slices.
            untrained: What the model has beside these parameters, which is the first worker's, too.

        Raises:
            InvalidRequestError: It was called before.
        """
        self.check_unprepared()
        self._prepared = _Prepared(layout, initial, state, deliver, untrained or None)

    def joined(self, joined: Joined, identity: Any, host: str) -> None:
        """Take what the manager has answered to `join`."""
        self._shards.plans_ahead = joined.lookahead > 0
        run = f"{identity.job}/{joined.run}"
        self._shards.identify(idl.common.Identity(run, identity.worker, identity.incarnation))
        self._synchronisation = joined.synchronisation
        self._lost = joined.lost

    def open(self, assignment: Assignment, first: int) -> None:
        """Open the job at the shards, with the parameters of the first worker.

        Raises:
            InvalidRequestError: Nothing was prepared, the parameter server refuses, or other workers' models
                differ.
            RewoundError: A shard is in another attempt, or was started again.
        """
        if self._prepared is None:
            raise InvalidRequestError(
                "the parameter server has no parameters of this model: call distribute before the loop over "
                "the loader"
            )
        layout, initial = self._prepared.layout, self._prepared.initial
        if self._gradient is None:
            self._options = StepOptions(layout.groups)
            self._parameters = np.empty_like(initial)
            self._gradient = Gradient(layout, self._synchronisation.exact, self._norms, self._weights)
            self._norms.open(layout)
        # In bsp nothing can have been trained before the job's first iteration, as it may in other modes.
        begins = self._synchronisation.mode != "bsp" or assignment.iteration == first
        state = self._prepared.state
        untrained = self._prepared.untrained
        is_first = self._shards.open(
            layout,
            self._synchronisation,
            initial,
            assignment,
            state,
            begins=begins,
            untrained=None if untrained is None else untrained.encoded,
            weights=self._weights.are_given,
        )
        self._lacks_untrained = untrained is not None and not is_first
        if self._shards.pulls_early and not len(self._spare):
            self._spare = np.empty_like(initial)
        self._shards.forfeit(self._lost)

    def may_begin(self, part: Assignment) -> bool:
        """Return whether the push of an assignment's gradient may begin before the gradient is complete.

        Not where it is pushed again, or the job is not in bsp: elsewhere a push cannot be taken back.
        """
        mode = self._synchronisation.mode
        is_first = part.count > 0 and part.iteration > self._options.reached
        return mode == "bsp" and is_first and self._given_up is None and self._weights.is_known(part)

    def begin_push(
        self, part: Assignment, groups: Sequence[Group] | None, lr_scale: float, ready: NoteReady = Bucket
    ) -> None:
        """Begin to push `gradient`, which is still being computed; `contribute` ends it.

        A push that was begun before, and not ended since the script's step has failed, is given up.

        Args:
            part: The assignment, for which `may_begin`.
            groups: As in `contribute`.
            lr_scale: As in `contribute`.
            ready: Called for what each `advance_push` adds, and for the rest; the bucket is told when it was
                written to the shards, or the rest answered by them.
        """
        self.give_up_push("its gradient is computed again")
        if self._given_up is not None:
            return
        options = scaled(self._options.upcoming(groups), lr_scale)
        self._begin_pull(part)
        push = self._shards.begin_push(part, self.gradient.values, options, self._weights.of(part))
        self._begun = _Begun(part, options, push, ready)

    def advance_push(self, ends: Sequence[int]) -> None:
        """Let `gradient` be pushed up to these elements, one for each shard; before the end of any shard."""
        if self._begun is not None:
            self._begun.push.advance(ends, self._begun.ready(is_last=False).note_done)

    def give_up_push(self, reason: str) -> None:
        """Break off a push that was begun, so that no step can be taken with what was pushed.

        If one was begun, `contribute` will have the iteration repeated in another attempt.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            self._given_up = RewoundError(f"iteration {begun.part.iteration}: {reason}", begun.part.attempt)
            begun.push.give_up(self._given_up)

    def contribute(self, done: Assignment, groups: Sequence[Group] | None, lr_scale: float) -> None:
        """Push the gradient, or what is left of it, and learn its norms.

        Raises:
            InvalidRequestError: Exact sums are not of all samples, it is not known what the gradient is a
                mean over, or a shard refuses the gradient again.
            RewoundError: A shard is in another attempt, or has refused the gradient for the first time; or a
                push that was begun was given up, or has other options.
        """
        self.gradient.check(done)
        options = scaled(self._options.at(done.iteration, groups), lr_scale)
        if self._begun is not None and (self._begun.part is not done or self._begun.options != options):
            self.give_up_push("its push has begun with other options")
        if self._given_up is not None:
            raise self._given_up
        if not done.count:
            return
        values, weight = self.gradient.values, self._weights.of(done)
        begun, self._begun = self._begun, None
        self._begin_pull(done)
        try:
            with self._meter.pushing(done):
                last = begun.ready(is_last=True) if begun else None
                norms = begun.push.finish() if begun else self._shards.push(done, values, options, weight)
                if last:
                    last.note_done()
            self._norms.take_all(norms)
            self._norms.take_gradient(done, values, self.gradient.layout)
            if not self._shards.pushed_finite:
                self._norms.not_finite = done.iteration
        except (InvalidRequestError, NotMemberError, UnavailableError) as error:
            # Other workers may be in another attempt, or the shard may have lost the job: recover once. If
            # the same iteration is refused again, another attempt would not help.
            if self._synchronisation.mode != "bsp" or self._refused == done.iteration:
                raise
            self._refused = done.iteration
            raise RewoundError(
                f"a shard refused iteration {done.iteration}: {error}", done.attempt
            ) from error

    def take(self, assignment: Assignment) -> None:
        """Pull the parameters of an assignment, unless they are at hand, and deliver them.

        Raises:
            RewoundError: A shard is in another attempt, or was restarted.
        """
        assert self._prepared is not None
        taken = assignment.attempt, assignment.iteration
        if taken != self._taken:
            with self._meter.pulling(assignment) as waited:
                waited(self._pull(assignment))
            self._taken = taken
            if self._lacks_untrained and self._prepared.untrained is not None:
                data = self._shards.untrained()
                if data is not None:
                    self._prepared.untrained.take(data)
                self._lacks_untrained = False
        self._prepared.deliver()  # also before a further slice: the first has moved the model's statistics

    def _begin_pull(self, done: Assignment) -> None:
        """Begin to pull what a gradient leads to, where the shards step to it range by range."""
        early = self._early_pull
        if early is not None and (early.attempt, early.iteration) == (done.attempt, done.iteration + 1):
            return
        self._give_up_pull()
        if self._shards.pulls_early:
            calls = self._shards.begin_pull(done.iteration + 1, self._spare)
            self._early_pull = _EarlyPull(done.attempt, done.iteration + 1, calls)

    def _pull(self, assignment: Assignment) -> float:
        """Pull an assignment's parameters, or the rest if that was begun; return as `ShardClients.pull`."""
        if self._synchronisation.is_asynchronous:
            return self._shards.pull(-1, self._parameters)
        early = self._early_pull
        if early and (early.attempt, early.iteration) == (assignment.attempt, assignment.iteration):
            waited = self._shards.confirm(assignment.iteration)
            self._early_pull = None
            with contextlib.suppress(EvenpaceError):  # then all of it is pulled
                self._shards.finish_pull(early.calls)
                self._parameters, self._spare = self._spare, self._parameters
                return waited
        self._give_up_pull()
        return self._shards.pull(assignment.iteration, self._parameters)

    def _give_up_pull(self) -> None:
        early, self._early_pull = self._early_pull, None
        if early is not None:
            early.calls.end()

    def settle(self, done: Assignment) -> None:
        """Tell the shards, before this worker leaves, that it has pushed to each of them."""
        if self._shards.plans_ahead:
            with contextlib.suppress(RewoundError, NotMemberError):
                self._shards.pull(done.iteration + 1, self._parameters)

    def forfeit(self, lost: Sequence[Any]) -> None:
        """Tell the shards not to wait for slices whose workers have left; may be called by any thread."""
        self._shards.forfeit(lost)

    def fence(self, attempt: int) -> None:
        """Fence the shards, so that calls of earlier attempts that wait there fail; called by any thread."""
        self._shards.fence_from_any_thread(attempt)

    def recover(self, manager: Membership, error: RewoundError, first: int) -> Assignment | None:
        """Bring the shards to one version in another attempt, and pull it.

        Until this worker has parameters of a later iteration than the first, the first ones may be set again,
        by `open`: here, if it was called before.

        Raises:
            InvalidRequestError: The shards have no version in common, and never will.
            DeadlineExceededError: The recovery did not succeed in time.
        """
        self.give_up_push("the job is recovered")
        self._give_up_pull()
        self._given_up = None
        is_opened, has_trained = self._taken is not None, self._taken is not None and self._taken[1] > first

        def pull(assignment: Assignment) -> None:
            if is_opened and not has_trained:
                self.open(assignment, first)
            if is_opened:
                self.take(assignment)

        return recover(
            manager,
            self._shards,
            error,
            None if has_trained else first,
            pull,
            self._timeout,
            self._log,
        )

    def abandon(self, error: EvenpaceError) -> None:
        """Make calls in progress and all later ones fail with an error; may be called from any thread."""
        self._shards.abandon(error)

    def close(self) -> None:
        """Close the connections."""
        self.give_up_push("this worker leaves")
        self._give_up_pull()
        self._shards.close()

    def optimizer_state(self, assignment: Assignment | None) -> OptimizerState:
        """Return the optimiser's state at the parameter server, between two iterations.

        In bsp it belongs to `parameters`; in the other modes, it is the present state.

        Args:
            assignment: This worker's present assignment.

        Raises:
            InvalidRequestError: The training has not begun, this worker was released, or, in bsp, it has no
                part in its next batch, or others have got its part and gone on.
        """
        if assignment is None or self._taken is None:
            raise InvalidRequestError("there is nothing to save: this worker is not in a running job")
        version = assignment.iteration if self._synchronisation.mode == "bsp" else -1
        if version >= 0 and not assignment.count:
            raise InvalidRequestError(
                f"the optimiser's state cannot be saved before iteration {version}: its batch of "
                f"{assignment.total} samples has none for this worker, so that the others go on without it. "
                f"Save it at the end of an epoch, or after the next step; or have the loader leave out an "
                f"epoch's last, small batch (drop_last=True)"
            )
        try:
            return self._shards.state(version, self._parameters)
        except RewoundError as error:
            # The parameters that the caller may have saved already are not those of any other state.
            raise InvalidRequestError(
                f"the optimiser's state of iteration {version} is gone ({error}); save it after the next"
            ) from error


class ParameterViews(Generic[T]):
    """What an adapter makes of a parameter server's `parameters`, once for each of the arrays.

    Args:
        server: The exchange.
        make: Makes it of an array, (elements,).
    """

    def __init__(self, server: ParameterServer, make: Callable[[NDArray[Any]], T]) -> None:
        self._server = server
        self._make = make
        self._made: dict[int, T] = {}

    @property
    def now(self) -> T:
        """That of the parameters as last pulled."""
        flat = self._server.parameters
        if id(flat) not in self._made:
            self._made[id(flat)] = self._make(flat)
        return self._made[id(flat)]

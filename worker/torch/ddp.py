"""PyTorch with `torch.distributed`: all-reduced gradients, weighted by batch size.

Every framework of this kind takes the mean over its ranks. With uneven batches the gradient of the whole
batch is the sum of the workers' mean gradients times x_i / X (LB-BSP, section 3.4). The weight is applied
once: to the gradients by a communication hook, or to the loss. Where losses are means over n_i tokens or the
like, it is n_i / N, and N is summed over the ranks, too: for the hook beside the gradients, so that nobody
waits for it longer than for these; for the loss before the backward pass.
"""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, cast

import torch
from torch import distributed, nn
from torch.autograd import Variable
from torch.distributed.algorithms.join import JoinHook
from torch.nn.parallel import DistributedDataParallel

from idl.errors import InvalidRequestError
from idl.exchange import FORMED_GROUP
from worker.exchanges.all_reduce import AllReduce
from worker.gradient_norms import Cadence
from worker.own_session import own_session
from worker.session import Session
from worker.torch.backward_watch import BackwardWatch
from worker.torch.batch_norm import SyncBatchNorm
from worker.torch.consecutive import ConsecutivePairs
from worker.torch.data_parallel import DataParallel
from worker.torch.device_timing import time_on
from worker.torch.formed_group import BACKENDS, FormedGroup, Wrapper, backend_for, guard_step
from worker.torch.gradient_norms import squared_norm
from worker.torch.loader import Loader
from worker.torch.losses import MEAN, weight_of, without_gradient
from worker.torch.lost_shards import end_with_lost_shards
from worker.torch.memory_watch import note_device, watch_memory
from worker.torch.micro_batches import Accumulation
from worker.torch.preconditioner import Preconditioner, preconditioner_of
from worker.torch.training_state import TrainingState
from worker.torch.weight_sums import WeightSum

Model = TypeVar("Model", bound=nn.Module)

_HOOK, _LOSS = "balance(model, loader)", "weighted(loss)"


def balance(
    model: Model,
    loader: Loader,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    also: Sequence[Any] = (),
    shard_size: int | None = None,
) -> Model:
    """Let a model in `DistributedDataParallel` sum gradients weighted by batch size.

    The training loop does not change; the gradient is expected to be of the *mean* loss over the loader's
    batch: over its samples, or over what the loader's `weight=` says. Reductions overlap with the backward
    pass as usual. An iteration's gradients may be accumulated over pieces of its batch, under `no_sync`; not
    those of several batches.

    The batch processing time leaves out the time from the moment when the last bucket of gradients is ready
    until it has been reduced. On a GPU it is measured by events on its stream.

    Where an optimiser is given and no launcher such as torchrun has put several processes into the group,
    which is gloo's or NCCL's, the manager has the job's workers form their group, another one whenever
    workers come or go: then all take the parameters, the optimiser's state, its schedulers' and that of
    `also` from one of them, and nothing else has to be the same at the start. The script's own group is given
    up for it, and the ranks may change between two batches. So are groups of a model in FSDP2, whose loss is
    to be scaled by `weighted`: its parameters and the optimiser's state are gathered in one group and sharded
    in the next. Where one of its ranks dies, the others end, with a line that says so; over a mesh of copies
    and shards, by `shard_size`, they go on where each shard has another copy.

    Args:
        model: The model, on all ranks; the ranks are the workers of the job.
        loader: The evenpace loader of the training data.
        optimizer: The model's optimiser. With Adam and AdamW of torch.optim the gradient noise is that of the
            preconditioned gradients (Pollux, section 3.1, equation 5); of parameters that it does not step,
            none. With others, and without one, it is that of plain gradients. The training is the same.
        also: Other objects with `state_dict` and `load_state_dict` that workers which join have to take over,
            such as a `GradScaler`; in the same order on all of them.
        shard_size: For a model in FSDP2 over a mesh of two dimensions, (1, 1) as each process begins alone:
            ranks that share one copy of the parameters. The mesh of n ranks is (n / d, d), where d is the
            smallest divisor of n that is at least `shard_size`, or n where there are fewer ranks: so none has
            more than 1 / `shard_size` of the parameters unless there are too few. With 2, three ranks have
            the mesh (1, 3), without copies, and four (2, 2).

    Returns:
        The same model.

    Raises:
        InvalidRequestError: The model is not in `DistributedDataParallel`, or has a part of its parameters on
            each rank, as in FSDP2; it has synchronised batch normalisation, or a communication hook already;
            the optimiser is L-BFGS with more than one evaluation a step; the session has a parameter server;
            `shard_size` is below 1, or given or left out where the model's mesh does not fit; or, in a job
            with micro-batches or a group that the manager forms, the loader has another model.
    """
    session = loader.session
    exchange = AllReduce.of(
        session.exchange, "the session has a parameter server, which weights gradients: leave out `ps`"
    )
    if isinstance(optimizer, torch.optim.LBFGS):
        _check_evaluates_once(optimizer)
    if optimizer is not None and _is_sharded_alone(model):
        _form_groups_of_shards(model, loader, exchange, optimizer, also, shard_size)
        return model
    _check_replicated(model)
    if shard_size is not None:
        raise InvalidRequestError(f"shard_size {shard_size}: only for a model in FSDP2")
    assert isinstance(model, DistributedDataParallel)
    for name, module in model.module.named_modules():
        if isinstance(module, nn.SyncBatchNorm | SyncBatchNorm):
            raise InvalidRequestError(
                f"{name} synchronises its statistics, and so mixes the ranks' gradients in the backward pass "
                f"before they are weighted: scale the loss by weighted(loss) in place of balance"
            )
    if session.training.micro_batch is not None and loader.accumulation is not None:
        raise InvalidRequestError(
            "balance was called before with this loader, whose micro-batches are those of one model, so that "
            "ranks would wait for each other: put the models into one module, in DistributedDataParallel, or "
            "leave out micro_batch="
        )
    forms = optimizer is not None and _is_alone(model, model.process_group)
    if exchange.kind == FORMED_GROUP or (forms and loader.accumulation is not None):
        raise InvalidRequestError(
            "balance was called before: the manager has one group formed, for one model; put the models into "
            "one module, in DistributedDataParallel, or start the workers by torchrun"
        )
    preconditioner = preconditioner_of(optimizer)
    device = next(model.parameters()).device
    note_device(session, device)
    time_on(device, session)
    watch_memory(session, device)
    trained = [p for p in model.parameters() if p.requires_grad]
    summed = partial(_sum, session, exchange)
    accumulation = Accumulation(session, trained, model, summed, preconditioner)
    # Off the CPU, the host's time says nothing of what norms take, which is little.
    cadence = Cadence(sum(p.numel() for p in trained) if device.type == "cpu" else 0)
    watch = None
    if device.type == "cpu":
        watch = BackwardWatch(model)
        session.meter.take_backward = watch.take

    def register() -> None:
        group = model.process_group
        pairs = ConsecutivePairs(session.norms) if distributed.get_world_size(group) == 1 else None
        reduction = _Reduction(
            session, exchange, accumulation, group, cadence, preconditioner, pairs=pairs, watch=watch
        )
        model.register_comm_hook(reduction, _reduce)
        if preconditioner is not None:
            preconditioner.forget()

    try:
        register()
    except RuntimeError as error:
        raise InvalidRequestError(
            f"balance needs to be the model's only communication hook: {error}"
        ) from error
    if forms and optimizer is not None:
        state = TrainingState(model.module, optimizer, also)
        backends = distributed.get_backend_config(model.process_group)
        wrapper = DataParallel(model, backend_for(device, backends) == "gloo", register)
        formed = FormedGroup(loader, model, wrapper, backends, state)
        guard_step(optimizer, formed)
        formed.let(exchange)
    loader.accumulation = accumulation
    model.join = _join_nobody  # type: ignore[method-assign]
    model.join_hook = _refuse_to_join  # type: ignore[method-assign]
    return model


def _join_nobody(*_: Any, **__: Any) -> AbstractContextManager[None]:
    """Return what `DistributedDataParallel.join` does here: every rank goes through all batches."""
    return nullcontext()


def _refuse_to_join(**_: Any) -> JoinHook:
    raise InvalidRequestError(
        "torch.distributed.algorithms.Join of a model that balance was given: every worker goes through all "
        "batches, with samples without weight where it has no part, so that there is nothing to join; take "
        "the context away"
    )


def _form_groups_of_shards(
    model: nn.Module,
    loader: Loader,
    exchange: AllReduce,
    optimizer: torch.optim.Optimizer,
    also: Sequence[Any],
    shard_size: int | None,
) -> None:
    """Have the manager form the groups of a model in FSDP2, whose loss is scaled by `weighted`.

    Raises:
        InvalidRequestError: `shard_size` is below 1, or the model has no mesh for it; the model is sharded in
            a way that cannot be done again for another group; the optimiser has other parameters; or the job
            has micro-batches, or another model.
    """
    # Only here, as FSDP2 takes long to import.
    from worker.torch.replicated_shards import ReplicatedShards
    from worker.torch.sharded_group import FullyShard, ShardedGroup
    from worker.torch.shards import Shards

    session = loader.session
    if session.training.micro_batch is not None:
        raise InvalidRequestError(
            "balance of a model in FSDP2 in a job with micro-batches: ranks have different numbers of "
            "passes, which all gather parameters; leave out micro_batch=, or use DistributedDataParallel"
        )
    if exchange.kind == FORMED_GROUP:
        raise InvalidRequestError(
            "balance was called before: the manager has one group formed, for one model"
        )
    backends, device = distributed.get_backend_config(), next(model.parameters()).device
    if shard_size is not None and backend_for(device, backends) != "gloo":
        raise InvalidRequestError(f"shard_size {shard_size}: only in groups of gloo's, not {backends}")
    shards = Shards(model, optimizer, shard_size)
    note_device(session, device)
    watch_memory(session, device)
    end_with_lost_shards(session, exchange)
    wrapper: Wrapper = FullyShard(session, model, shards)
    if shard_size is not None:
        wrapper = ReplicatedShards(session, model, optimizer, shards, shard_size)
    state, alone = TrainingState(model, optimizer, also), ShardedGroup(session, shards, [], {})
    formed = FormedGroup(loader, model, wrapper, backends, state, alone)
    if shard_size is not None:
        guard_step(optimizer, formed)
    formed.let(exchange)


def _check_replicated(model: object) -> None:
    """Check that a model is in `DistributedDataParallel`, and that this rank has all of its parameters.

    Raises:
        InvalidRequestError: It is not, or has a part of them.
    """
    kind = type(model).__name__
    tensor = sys.modules.get("torch.distributed.tensor")  # else nothing is a DTensor
    if tensor is not None and isinstance(model, nn.Module):
        sharded = [name for name, one in model.named_parameters() if isinstance(one, tensor.DTensor)]
        if sharded:
            raise InvalidRequestError(
                f"{kind}: balance takes a model in torch's DistributedDataParallel, each of whose ranks has "
                f"all parameters, but {sharded[0]} is a DTensor, as those of FSDP2's fully_shard: scale the "
                f"loss by weighted(loss), and start the processes by torchrun, without balance, or each by "
                f"itself, and give balance the optimiser"
            )
    if not isinstance(model, DistributedDataParallel):
        raise InvalidRequestError(
            f"{kind}: balance takes a model in torch's DistributedDataParallel; for others, such as those of "
            f"FSDP2's fully_shard, start the processes by torchrun, and scale the loss by weighted(loss)"
        )


def _check_evaluates_once(optimizer: torch.optim.LBFGS) -> None:
    """Check that L-BFGS evaluates the loss once for a step.

    How often else depends on the losses, of which each rank has another one, so that ranks would part.

    Raises:
        InvalidRequestError: It does not.
    """
    for group in optimizer.param_groups:
        if group["max_iter"] != 1 or group["line_search_fn"] is not None:
            raise InvalidRequestError(
                f"optimizer LBFGS with max_iter={group['max_iter']}, line_search_fn="
                f"{group['line_search_fn']!r}: how often it evaluates a batch depends on its loss, which is "
                f"another one on each rank; give it max_iter=1 and no line_search_fn, or take another one"
            )


def _is_sharded_alone(model: object) -> bool:
    """Return whether a model is in FSDP2, and this process is alone in torch.distributed's default group."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # else nothing is in FSDP2
    return fsdp is not None and isinstance(model, fsdp.FSDPModule) and _is_alone(cast(nn.Module, model), None)


def _is_alone(model: nn.Module, group: distributed.ProcessGroup | None) -> bool:
    """Return whether a model's group is this process alone, and of a backend whose groups are formed."""
    if distributed.get_world_size(group) != 1:
        return False
    device = next(model.parameters()).device
    return backend_for(device, distributed.get_backend_config(group)) in BACKENDS


def weighted(
    loss: torch.Tensor,
    samples: int | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    *,
    ranks: int | None = None,
    session: Session | None = None,
) -> torch.Tensor:
    """Scale a loss, so that the mean of its gradients over all ranks is that of the whole batch's mean loss.

    It serves all wrappers that take the mean over ranks: `DistributedDataParallel`, FSDP2's `fully_shard`,
    Horovod. To be called for each backward pass, before a `GradScaler`; gradients are clipped after the
    reduction, as usual.

    The batch processing time ends when the backward pass of the batch's last piece has computed its
    gradients. With `DistributedDataParallel` and Horovod that leaves out the wait for the other ranks. FSDP2
    gathers parameters from all ranks within the passes, so that there the time includes a part of the wait,
    and workers look more alike than they are.

    Where the loader has `weight=`, the ranks' weights are summed first, over torch.distributed's default
    group; a wait for them does not count as batch processing time. With a function of the batch that begins
    when the loader yields it, and with "loss" only here. The loss is the mean over the whole batch; or a sum,
    also of a piece.

    Args:
        loss: The loss of this worker's batch, or of a piece of it; where the loader has `weight="loss"`, what
            `evenpace.torch.mean` returned.
        session: This worker's session; by default this process's.
        samples: Samples in the piece; by default those of this worker's whole batch.
        reduction: Whether the loss is the mean or the sum over the samples, or over what the weight counts.
        ranks: Number of ranks that the mean is taken over; by default those of torch.distributed's default
            group.

    Returns:
        The loss times ranks * samples / X, where X is the whole batch's samples; without `samples` where it
        is a sum. With weights n_i instead, of sum N, the loss times ranks * n_i / N, or ranks / N; 0 with
        gradients of 0 where this worker's weight is 0, whatever the loss is.

    Raises:
        InvalidRequestError: A value is not allowed, the gradient has been weighted already, or the job has
            micro-batches; or the mean's weight is not known.
    """
    session = session or own_session()
    assignment = session.assignment
    exchange = AllReduce.of(
        session.exchange, f"{_LOSS}: the parameter server weights gradients already; leave out `ps`"
    )
    if assignment is None:
        raise InvalidRequestError(f"{_LOSS}: only for batches that an evenpace loader gave")
    if session.training.micro_batch is not None:
        raise InvalidRequestError(
            f"{_LOSS}: in a job with micro-batches, ranks have different numbers of passes: "
            f"call balance(model, loader) for a model in DistributedDataParallel"
        )
    if reduction not in ("mean", "sum"):
        raise InvalidRequestError(f"reduction {reduction!r}: must be 'mean' or 'sum'")
    samples = assignment.count if samples is None else samples
    if not 0 <= samples <= max(1, assignment.count):
        raise InvalidRequestError(f"samples {samples}: this worker's batch has {assignment.count}")
    of_default_group = ranks is None
    if session.weights.are_given:
        _check_weighable(session, loss, samples, reduction, ranks)
    if ranks is None:
        if not distributed.is_initialized():
            raise InvalidRequestError("torch.distributed is not initialised: give the number of `ranks`")
        ranks = distributed.get_world_size()
    if exchange.note_weighting(_LOSS, samples):
        end_with_lost_shards(session, exchange)
        if of_default_group:
            _check_members(session, loss.device, None)
    time_on(loss.device, session)
    if session.weights.are_given:
        scaled = _by_weights(session, loss, ranks, reduction)
    else:
        # A worker without a part in the batch has a sample that must not count.
        part = 0 if not assignment.count else samples if reduction == "mean" else 1
        scaled = loss * (ranks * part / assignment.total)
    if scaled.requires_grad and exchange.weighted_samples >= assignment.count:
        stop = session.meter.stopwatch.stop
        # Callbacks run in the order in which they were queued: before those that wait for reductions.
        scaled.register_hook(lambda _: Variable._execution_engine.queue_callback(stop))
    return scaled


def _check_weighable(
    session: Session, loss: torch.Tensor, samples: int, reduction: str, ranks: int | None
) -> None:
    """Check a use of `weighted` in a job with weights.

    Raises:
        InvalidRequestError: The mean of a piece, or a sum that is a mean; or others are to be the ranks than
            those that sum up weights.
    """
    assignment = session.assignment
    assert assignment is not None
    if reduction == "mean" and samples < assignment.count:
        raise InvalidRequestError(
            f"{_LOSS}: samples {samples} of {assignment.count}: where the loader has weight=, what a piece's "
            f"loss is a mean over is not known; give its sum, with reduction='sum', or the whole batch's mean"
        )
    if reduction == "sum" and (weight_of(loss) is not None or session.weights.function is None):
        raise InvalidRequestError(
            f"{_LOSS}: reduction 'sum' where the weight is that of {MEAN}: leave reduction out, or make the "
            f"loaders with weight=, a function of the batch, and give a sum of losses"
        )
    if ranks is not None and not (distributed.is_initialized() and ranks == distributed.get_world_size()):
        raise InvalidRequestError(
            f"{_LOSS}: ranks {ranks}: where the loader has weight=, weights are summed over "
            f"torch.distributed's default group, whose ranks these must be"
        )


def _by_weights(session: Session, loss: torch.Tensor, ranks: int, reduction: str) -> torch.Tensor:
    """Return a loss times its weight's part of all ranks' weights, for which this waits."""
    weights, assignment = session.weights, session.assignment
    assert assignment is not None
    if weights.add_up is None:  # on all ranks in the same iteration; in groups that are formed, it is set
        weights.add_up = partial(WeightSum, device=loss.device)
    if (known := weight_of(loss)) is not None:
        weights.note(known, MEAN)
    own, stopwatch = weights.of(assignment), session.meter.stopwatch
    sum_of_ranks: WeightSum = weights.sum_of_ranks(assignment)
    was_running = stopwatch.is_running  # it stands still where a pass over the whole batch came before
    stopwatch.stop()
    sum_of_ranks.wait()
    if was_running:
        stopwatch.start()
    if not own:
        return without_gradient(loss)
    share = sum_of_ranks.over(ranks * own if reduction == "mean" else ranks)
    return loss * share.to(loss.dtype)


@dataclass
class _Reduction:
    """The state of the communication hook."""

    session: Session  # this worker's session
    exchange: AllReduce  # its exchange, which is told that gradients were weighted
    accumulation: Accumulation  # knows the micro-batch under way
    group: distributed.ProcessGroup  # the model's process group
    cadence: Cadence  # the iterations in which norms are taken where there are no micro-batches
    preconditioner: Preconditioner | None = None  # that of the model's optimiser; None for none
    # Squared norm of this worker's own gradient, as far as its buckets are ready.
    own: torch.Tensor | float = 0.0
    pairs: ConsecutivePairs | None = None  # takes the gradients of the only rank; None where there are others
    watch: BackwardWatch | None = None  # measures backward passes and reductions; None where that cannot be
    weights: WeightSum | None = None  # of all ranks, in this iteration; None in a job without weights


def _reduce(
    state: _Reduction,
    bucket: distributed.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Weight a bucket of gradients, and sum it over the ranks; the communication hook."""
    session, gradient = state.session, bucket.buffer()
    assignment = session.assignment
    if assignment is None:
        raise InvalidRequestError(f"{_HOOK}: only for batches that an evenpace loader gave")
    if state.exchange.note_weighting(_HOOK, assignment.count):
        _check_members(session, gradient.device, state.group)
    at_hand = state.accumulation.divisor
    weight = session.weights.of(assignment)
    if weight is not None and bucket.index() == 0:
        state.weights = WeightSum(weight, gradient.device, state.group)
    iteration, cadence = assignment.iteration, state.cadence
    is_measured = at_hand is not None or cadence.is_due(iteration, 1 if state.pairs is None else 2)
    diagonal = None
    if is_measured and state.preconditioner is not None:
        outdated = at_hand is None and state.preconditioner.is_outdated(iteration)
        with cadence.preparing() if outdated else cadence.taking(iteration):
            diagonal = state.preconditioner.flat(bucket.parameters(), bucket.gradients(), iteration)
        is_measured = diagonal is not None
    of_slice = is_measured and at_hand is None  # else norms of each micro-batch are taken
    alone = of_slice and state.pairs is not None
    if of_slice:
        with cadence.taking(iteration):
            if state.pairs is None:
                state.own = state.own + squared_norm(gradient, diagonal)
            elif weight != 0:
                state.pairs.add(assignment, bucket, diagonal)
    if assignment.count and weight != 0:
        # Over micro-batches, the gradient is accumulated in units of the last one's.
        mass = at_hand or (assignment.count if weight is None else weight)
        gradient.mul_(mass / assignment.total)
    else:
        gradient.zero_()  # the gradient of a sample without weight may be infinite
    last = bucket.is_last()
    if last:
        if of_slice and not alone:
            session.norms.add(assignment, assignment.count, state.own, weight, once=True)
        state.own = 0.0
        cadence.end(iteration)
        session.meter.stopwatch.stop()
    watched = state.watch.ready(is_last=last) if state.watch is not None else None
    weights = state.weights

    def reduced(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        if watched is not None:
            watched.note_done()
        total = future.value()[0]
        if weights is not None:
            weights.divide(total, assignment.total)
        if is_measured and not alone:
            with cadence.taking(iteration):
                session.norms.take_reduced(iteration, squared_norm(total, diagonal))
        if last:  # the rest of the iteration, such as the optimiser's step, is this worker's own time
            session.meter.stopwatch.start()
        return total

    work = distributed.all_reduce(gradient, group=state.group, async_op=True)
    future: torch.futures.Future[torch.Tensor] = work.get_future().then(reduced)
    return future


def _sum(session: Session, exchange: AllReduce, sums: torch.Tensor, group: distributed.ProcessGroup) -> None:
    """Sum over the ranks what each has weighted by its samples, in place."""
    assignment = session.assignment
    assert assignment is not None
    if exchange.note_weighting(_HOOK, assignment.count):
        _check_members(session, sums.device, group)
    session.meter.stopwatch.stop()
    distributed.all_reduce(sums, group=group)
    session.meter.stopwatch.start()


def _check_members(session: Session, device: torch.device, group: distributed.ProcessGroup | None) -> None:
    """Check that the ranks are the workers of the job, so that their weights sum to 1, and weigh alike.

    Raises:
        InvalidRequestError: They are not; raised on all ranks.
    """
    assignment = session.assignment
    assert assignment is not None
    own = [assignment.count, assignment.iteration]
    if session.weights.are_given:
        own.append(session.weights.function is not None)
    # sums: (2,) or (3,), over the ranks
    sums = torch.tensor(own, dtype=torch.int64, device=device)
    distributed.all_reduce(sums, group=group)
    count, iterations, *functions = sums.tolist()
    if functions and functions[0] not in (0, distributed.get_world_size(group)):
        raise InvalidRequestError(
            f"{functions[0]} of {distributed.get_world_size(group)} ranks have loaders with weight=, a "
            f'function of the batch, and the others with weight="loss": make them the same on all'
        )
    if (count, iterations) != (assignment.total, assignment.iteration * distributed.get_world_size(group)):
        raise InvalidRequestError(
            f"the batch sizes of the {distributed.get_world_size(group)} ranks sum to {count} of "
            f"{assignment.total} samples: all ranks of the process group, and no others, must be workers of "
            f"the job {session.config.job!r} (start its manager with `--workers` as many); "
            f"without torchrun, give balance the optimizer, too"
        )

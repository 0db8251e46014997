/**
 * One shard of the parameter server: it holds a contiguous part of the job's flattened parameters, forms the
 * weighted mean of the workers' gradients, (x_1 g_1 + ... + x_n g_n) / (x_1 + ... + x_n), and steps the optimiser.
 *
 * Flattening: the parameters in the order of the optimiser's parameter groups, each in row-major order, one
 * after the other. With S shards and N elements, shard s holds elements floor(N s / S) up to, not including,
 * floor(N (s+1) / S). All elements have the job's dtype, in little-endian bytes.
 *
 * The job's name in `identity` is the manager's job and run, joined by "/".
 *
 * A worker calls open once, initialise if `open` says that nobody has, and pull for the first version. Then,
 * per iteration k: push(k) with the assignment it got from the manager, report to the manager, pull(version
 * k + 1). The shard steps when the pushed counts sum to the assignment's total. Where there are several shards,
 * each waits with that until it is certain that the others can do so, too.
 *
 * That is mode bsp. In ssp and asp every push is a step of its own, and the version is the number of steps. In
 * backup a step is taken once enough gradients have come; pull(version j), where j is the next assignment's
 * iteration, which may be later than k + 1. See Synchronisation in common.thrift.
 *
 * In bsp a slice is known by its place. Whoever brings one that is there already, as a whole or as a part of a
 * larger one, or after the step, is told that all is well; so a worker's share may be given to others, in one
 * piece or several, even if it is not dead after all. A piece of a slice whose connection broke goes on where that
 * stopped. What others are still bringing, in whole or in pieces, is Unavailable: it may be pushed again. A slice
 * that crosses the border of another is refused.
 *
 * A shard may keep checkpoints of itself, every so many versions. `fence` and `rewind` bring the shards of a job
 * together again at one version after any of them, or the manager, had to start anew.
 *
 * To save a job, a worker pulls the optimiser's state beside the parameters, slot by slot; to go on from it, it
 * sets these slots before `initialise` sets the parameters.
 *
 * Large fields (`gradient`, `parameters`) come last in their messages on purpose: a peer may write the
 * message up to them, then the tensor's memory, and read straight into a tensor likewise.
 */
namespace py evenpace_idl.parameter_server

include "common.thrift"

/** A run of consecutive elements of the shard that share the optimiser's options. */
struct ParameterGroup {
  1: i64 elements
  /**
   * sgd: lr, momentum, dampening, weight_decay, nesterov (0 or 1).
   * adam, adamw: lr, beta1, beta2, eps, weight_decay, amsgrad (0 or 1).
   * With the meaning and the defaults of torch.optim; lr must be given.
   * keras_sgd: lr, momentum, nesterov, weight_decay. keras_adam, keras_adamw: as adam. With Keras's meaning:
   * weight decay is decoupled in all of them, and eps is 1e-7 and weight_decay 0 unless given.
   */
  2: map<string, double> options
  /**
   * The elements are no parameters but statistics, such as batch normalisation's running ones: what is pushed
   * is their new value, of which the shard keeps the weighted mean. No option applies to them.
   */
  3: optional bool statistics
}

/** One tensor of the model. Workers whose tensors differ cannot train together. */
struct Tensor {
  1: string name                    // empty if the worker does not know it
  2: list<i64> shape
  3: string dtype                   // as in "float32"
}

struct OpenRequest {
  1: common.Identity identity
  2: string dtype                   // "float32" or "float64"
  3: string optimizer               // "sgd", "adam" or "adamw"; with Keras's semantics, "keras_" before it
  4: list<ParameterGroup> groups
  5: optional common.Synchronisation synchronisation  // as the manager said; the same for every worker
  6: optional list<Tensor> tensors  // the whole model's, in the order of flattening, to be compared
}

struct OpenReply {
  1: common.Identity identity
  2: bool initialised               // false: call `initialise`; the first to do so decides
  3: i64 version                    // the number of optimiser steps so far; meaningless until initialised
  4: optional i64 attempt           // that the shard is in; left out: 0
  5: optional string instance       // drawn when the shard began to hold the job: another one after a restart
  6: optional bool restored         // it was started again within the attempt, with a checkpoint's parameters: what has
                                    // come since is lost, and another attempt has to begin before it goes on
}

struct InitialiseRequest {
  1: common.Identity identity
  2: i64 version                    // the iteration of the first assignment; 0 in a new job
  3: optional string slot           // `parameters` are this slot of the optimiser's state, such as torch.optim's
                                    // "momentum_buffer" or "exp_avg"; to be set before the parameters are
  4: optional i64 steps             // with a slot: the optimiser's steps so far
  5: optional i64 attempt           // of the first assignment; left out: 0
}

struct InitialiseReply {
  1: common.Identity identity
  2: bool accepted                  // false: somebody else was first, whose parameters hold
}

struct PushRequest {
  1: common.Identity identity
  2: common.Assignment assignment   // count must be at least 1
  3: list<ParameterGroup> groups    // the options of the step that this gradient is for, the same from every worker;
                                    // left out or empty: unchanged. Where they differ, those with the batch's first
                                    // samples hold, and in bsp the next `pull` of the others is refused.
                                    // In ssp and asp, each worker's hold for its own gradients.
  4: optional string instance       // as `open` said: refused with Rewound if it is another now
  5: optional i64 kept              // the latest version of which all shards have a checkpoint, for all that the
                                    // worker knows: they need none from before
  6: optional bool shared           // in bsp: other shards take a part of this gradient, too. The step is taken once
                                    // it is certain that each of them has all of its part; see PullRequest.settled
}

struct PushReply {
  1: common.Identity identity
  2: i64 iteration
  3: optional i64 checkpoint        // the latest version of which this shard has a checkpoint
}

struct PullRequest {
  1: common.Identity identity
  2: i64 version                    // wait until at least so many steps are done; -1: whatever there is now
  3: optional string slot           // this slot of the optimiser's state instead of the parameters
  4: optional i64 attempt           // that the worker is in; left out: 0 or, with version -1, whatever it is
  5: optional string instance       // as in PushRequest
  6: optional double wait           // seconds for which the answer may be held back; see NotYet
  7: optional bool settled          // every shard has all of the gradient for this version, as the manager's next
                                    // assignment says. Left out: the caller's own part of it; where the gradient is
                                    // shared, all who have pushed must say as much before the step is taken
}

struct PullReply {
  1: common.Identity identity
  2: i64 version
  3: double waited                  // seconds for which the shard held this answer back
  4: binary parameters
}

struct FenceRequest {
  1: common.Identity identity
  2: i64 attempt
}

struct FenceReply {
  1: common.Identity identity
  2: bool initialised
  3: i64 version                    // the number of optimiser steps so far; meaningless until initialised
  4: list<i64> checkpoints          // versions that the shard can go back to, ascending
  5: optional bool complete         // it has all of the next gradient: it can go on from version + 1, too
}

struct RewindRequest {
  1: common.Identity identity
  2: i64 attempt
  3: i64 version                    // to go on from: one of those that the answer to `fence` has named
  4: optional bool anew             // nothing was trained, and not all shards have parameters: forget those of this
                                    // version, for they are initialised again
}

struct RewindReply {
  1: common.Identity identity
  2: string instance                // for the calls that follow
}

struct StateRequest {
  1: common.Identity identity
}

struct StateReply {
  1: common.Identity identity
  2: i64 steps                      // the optimiser's so far
  3: list<string> slots             // that it has by now, each with as many elements as the parameters
}

struct ForfeitRequest {
  1: common.Identity identity
  2: i64 iteration                  // a lost slice, as the manager said
  3: i64 start
  4: i64 count
  5: i64 total
}

struct ForfeitReply {
  1: common.Identity identity
  2: i64 iteration
}

service ParameterServer {
  /** See AuthenticateRequest: the first call of a connection, where a service asks for tokens. */
  common.AuthenticateReply authenticate(1: common.AuthenticateRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised)

  OpenReply open(1: OpenRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised)

  InitialiseReply initialise(1: InitialiseRequest request, 2: binary parameters)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised)

  /**
   * `gradient` is the mean over the assignment's samples. Answered when it has been added; in backup also
   * when it came too late and was dropped.
   */
  PushReply push(1: PushRequest request, 2: binary gradient)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised)

  /** Answered when the version is there. */
  PullReply pull(1: PullRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised, 6: common.NotYet not_yet)

  /**
   * A new attempt begins: nothing of an earlier one is taken any more, what has come for the next step is dropped
   * unless that is all of it, and whoever waits is told. The same may be said again.
   */
  FenceReply fence(1: FenceRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised)

  /**
   * Go on from a version, in an attempt that `fence` has begun. The same may be said again. A version that is not
   * there any more, since the shard was started again after `fence`, is refused with Rewound: begin another attempt.
   */
  RewindReply rewind(1: RewindRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised)

  /** What there is of the optimiser's state, to be pulled slot by slot; the same until the next step. */
  StateReply state(1: StateRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised)

  /**
   * In backup, a slice is not waited for any more. The same loss may be told by every worker; it counts once.
   * In the other modes there is nothing to give up, and nothing happens: in bsp others bring the slice.
   */
  ForfeitReply forfeit(1: ForfeitRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised)
}

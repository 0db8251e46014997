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
 * A shard does not know the others, nor which of them it is: the first call with a `part` tells it. Later calls with
 * another part are refused, as after two shards have changed places.
 *
 * A worker calls open once, initialise if the answer to `open` has initialised false, and pull for the first version.
 * Then, per iteration k: push(k) with the assignment it got from the manager, and report to the manager. If that
 * answers with another assignment of iteration k, in bsp, push and report that, too, and so on; then pull(version
 * k + 1), for the assignment of iteration k + 1. The shard steps when the pushed counts sum to the assignment's total. Where there are several shards,
 * each waits with its step until it is certain that the others can step, too.
 *
 * That is mode bsp. In ssp and asp every push is a step of its own, and the version is the number of steps. In
 * backup a step is taken once enough gradients have arrived; pull(version j), where j is the next assignment's
 * iteration, which may be later than k + 1. See Synchronisation in common.thrift.
 *
 * In bsp a slice is known by its place. A push of samples that were counted already, as a slice or as a part of a
 * larger one, or after the step, is acknowledged and dropped; so a worker's slice may be assigned to others, in one
 * piece or several, even if the worker turns out to be alive. A push of samples whose connection broke continues
 * where that one stopped. So does one of samples that another connection is still sending, of which the rest is
 * dropped. A slice whose samples others have pushed in parts is Unavailable: it may be pushed again. A slice that
 * crosses the border of another is refused.
 *
 * A push may begin before its gradient is complete: a worker sends what its backward pass has computed, and the rest
 * later, within the time that the shard waits for a peer that is silent in the middle of a message.
 *
 * A shard may write checkpoints of itself, every n versions. `fence` and `rewind` bring the shards of a job to one
 * version again after any of them, or the manager, was restarted. The shards know best where the next batch begins, and refuse one that begins
 * elsewhere, where an assignment names its batch_start.
 *
 * To save a job, a worker pulls the optimiser's state beside the parameters, slot by slot; to resume from it, it
 * sets these slots before `initialise` sets the parameters.
 *
 * What a model has beside what is trained, such as frozen layers and buffers, the first shard keeps for workers that
 * join: bytes of any number under the name "untrained" in place of a slot, which the worker sets that sets the
 * parameters. They mean nothing to the shard, and do not change. An `initialise` of them has no `steps`.
 *
 * Exact sums. Where `synchronisation` has exact, the job has micro-batches, and `gradient` is no mean over the slice
 * but a sum over its micro-batches, of int64 in little-endian bytes: of rint((c 2^p) v) for each, where v is the mean
 * gradient of the micro-batch, or a statistic's new value, and c its samples. The product is one of double precision,
 * and rint rounds ties to even. Where X, the batch's samples, takes b bits, p is 63 - 20 - b, or 63 - 31 - b for
 * statistics; |v| must be below 2^20, or 2^31, so that no sum over the batch overflows. The shard adds integers up and
 * steps with (sum 2^-p) / X, rounded to the parameters' dtype. The result depends neither on how a batch is split nor
 * on who has computed which part of it.
 *
 * Weights. Where the job's JobSpec has a weight_limit, each push says what its gradient is a mean over, such as its
 * tokens, and the shard steps with (w_1 g_1 + ... + w_n g_n) / (w_1 + ... + w_n), or with zeros if no gradient has a
 * weight. A gradient of weight 0 is not looked at, and may be anything; in ssp and asp its step changes nothing.
 * Statistics are weighted by samples nevertheless. Where sums are exact, weights are multiples of 2^-20; c, and the
 * push's weight, are those of the micro-batch and the slice over the least power of 2 that is not below weight_limit,
 * and in place of X the shard divides by the sum of the pushes' weights.
 *
 * Large fields (`gradient`, `parameters`) are the last of their messages, so that a peer may write the message up to
 * them, then the tensor's memory, and read straight into a tensor likewise.
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
   * Whether the elements are statistics, such as batch normalisation's running ones, and no parameters: in place of
   * a gradient their new values are pushed, whose weighted mean the shard keeps. No option applies to them.
   */
  3: optional bool statistics
  4: optional i64 number            // of the worker's own parameter group that the run belongs to, for messages; left
                                    // out: its place in the list
}

/** One tensor of the model. Workers whose tensors differ cannot train together. */
struct Tensor {
  1: string name                    // empty if the worker does not know it
  2: list<i64> shape
  3: string dtype                   // as in "float32"
}

/** Which part of the job's flattened parameters a shard holds. Left out of a call, it is not checked. */
struct Part {
  1: i64 shard                      // the shard's number, from 0
  2: i64 shards                     // the number of the job's shards
  3: i64 first                      // the flattened parameters' element that is the part's first
}

struct OpenRequest {
  1: common.Identity identity
  2: string dtype                   // "float32" or "float64"
  3: string optimizer               // "sgd", "adam" or "adamw"; with Keras's semantics, "keras_" before it
  4: list<ParameterGroup> groups
  5: optional common.Synchronisation synchronisation  // as in the answer to join; the same for every worker
  6: optional list<Tensor> tensors  // the whole model's, in an order that all workers have, to be compared
  7: optional Part part             // that the shard is to hold
  8: optional string order          // names the order of the tensors' elements in the flattened parameters, to be
                                    // compared; left out: the tensors follow each other
}

struct OpenReply {
  1: common.Identity identity
  2: bool initialised               // false: call `initialise`; the first to do so decides
  3: i64 version                    // the number of optimiser steps so far; meaningless until initialised
  4: optional i64 attempt           // the attempt that the shard is in; left out: 0
  5: optional string instance       // drawn at random when the shard began to hold the job: another after a restart
  6: optional bool restored         // the shard was restarted within the attempt, with a checkpoint's parameters: later
                                    // steps are lost, and another attempt has to begin before it goes on
  7: optional bool ahead            // the shard knows PullRequest.ahead; one of an earlier version would not look at it,
                                    // and one whose mode has no such steps holds the answer back
  8: optional list<string> dtypes   // that it knows in PushRequest.dtype, beside the job's; left out: none
  9: optional bool untrained        // the shard keeps what is "untrained"
 10: optional bool weights          // it knows PushRequest.weight; one of an earlier version would not look at it
}

struct InitialiseRequest {
  1: common.Identity identity
  2: i64 version                    // the iteration of the first assignment; 0 in a new job
  3: optional string slot           // `parameters` are this slot of the optimiser's state, such as torch.optim's
                                    // "momentum_buffer" or "exp_avg"; to be set before the parameters are
  4: optional i64 steps             // with a slot: the optimiser's steps so far
  5: optional i64 attempt           // of the first assignment; left out: 0
  6: optional Part part             // that the shard is to hold
}

struct InitialiseReply {
  1: common.Identity identity
  2: bool accepted                  // false: another worker was first, and its parameters are used
}

struct PushRequest {
  1: common.Identity identity
  2: common.Assignment assignment   // count must be at least 1
  3: list<ParameterGroup> groups    // the options of the step that this gradient is for, the same from every worker;
                                    // left out or empty: unchanged. Where they differ, those of the worker with the
                                    // batch's first samples are used, and in bsp the next `pull` of the others is
                                    // refused. In ssp and asp, each worker's are used for its own gradients.
  4: optional string instance       // as in the answer to `open`: refused with Rewound if it has changed
  5: optional i64 kept              // the latest version of which all shards have a checkpoint, by their last answers:
                                    // it is kept until there is a later one
  6: optional bool shared           // in bsp: other shards take a part of this gradient, too. The step is taken once
                                    // it is certain that each of them has all of its part; see PullRequest.settled
  7: optional Part part             // that the gradient is for
  8: optional i64 checkpointed      // the least `checkpointed` of the shards' last answers, or -1: no version up to
                                    // this one, but `kept`, can be one that all have, and the shard may remove it.
                                    // Left out: it keeps the newest ones only
  9: optional string dtype          // of this gradient's elements, which are summed in the job's; "bfloat16", the first
                                    // 16 bits of a float32: statistics among them lose what they gain in an iteration.
                                    // Left out: the job's. Refused where sums are exact
  10: optional bool early           // the gradient may still change after a part of it was sent. Where such a push breaks
                                    // off, its sender alone may go on with it, by the same incarnation: others that push
                                    // these samples are refused with Rewound, and begin another attempt
  11: optional double weight        // what this gradient is a mean over, at least 0: given for all gradients of a step,
                                    // or for none. Left out: the assignment's count
}

struct PushReply {
  1: common.Identity identity
  2: i64 iteration
  4: optional list<i64> checkpoints // the versions of which this shard has checkpoints, ascending
  5: optional i64 checkpointed      // the last version of which it has written a checkpoint, or failed to; -1: none
  6: optional common.GradientNorms norms  // of the shard's last step, over its part of the elements; left out where they
                                    // are not known, as in ssp and asp. The sum over all shards is the whole gradients'
  7: optional bool not_finite       // this gradient has a NaN or an infinity; not looked at in ssp and asp
}

struct PullRequest {
  1: common.Identity identity
  2: i64 version                    // wait until at least this many steps are done; -1: the present version
  3: optional string slot           // this slot of the optimiser's state instead of the parameters
  4: optional i64 attempt           // the attempt that the worker is in; left out: 0 or, with version -1, any
  5: optional string instance       // as in PushRequest
  6: optional double wait           // seconds for which the answer may be held back; see NotYet. Left out: 600
  7: optional bool settled          // whether every shard has all of the gradient for this version, which follows from
                                    // the manager's next assignment. Left out: every shard has the caller's own part;
                                    // where the gradient is shared, the step waits for such a pull of each worker that
                                    // has pushed
  8: optional Part part             // that is asked for
  9: optional bool ahead            // the answer may begin before `version` is reached: each element is sent once it is
                                    // stepped with all gradients. What has come belongs to no version until a call with
                                    // `has` says that it does; if it never will, the connection is broken off
  10: optional bool has             // the caller has the parameters of this version from a call with `ahead`: they are
                                    // left out of the answer
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
  3: optional Part part             // that the shard is to hold
  4: optional string manager        // of the answer to `recover`: whose attempt it is
}

struct FenceReply {
  1: common.Identity identity
  2: bool initialised
  3: i64 version                    // the number of optimiser steps so far; meaningless until initialised
  4: list<i64> checkpoints          // versions that the shard can go back to, ascending
  5: optional bool complete         // the shard has all of the next gradient, and can go on from version + 1, too
  6: optional string process        // drawn at random at the start of the shard's process: the same behind two addresses
                                    // if they are the same shard's
  7: optional map<i64, common.Place> places  // by the version to go on from, where its batch begins: where the batch
                                    // before has ended. Versions of which that is not known are left out
}

struct RewindRequest {
  1: common.Identity identity
  2: i64 attempt
  3: i64 version                    // the version to go on from: one of those in the answer to `fence`
  4: optional bool reset            // nothing was trained, and not all shards have parameters: drop those of this
                                    // version, since they are initialised again
  5: optional Part part             // that the shard is to hold
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
  2: i64 steps                      // the optimiser's steps so far
  3: list<string> slots             // its slots at present, each with as many elements as the parameters
  4: optional i64 untrained         // bytes of what is "untrained"; left out: there are none
}

struct ForfeitRequest {
  1: common.Identity identity
  2: i64 iteration                  // of a lost slice, as in `Lost` of batchsize_manager.thrift
  3: i64 start
  4: i64 count
  5: i64 total
}

struct ForfeitReply {
  1: common.Identity identity
  2: i64 iteration
}

service ParameterServer {
  /** Authenticate the connection: its first call, where a service requires tokens; see AuthenticateRequest. */
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
   * Push the mean gradient over the assignment's samples, or the exact sum. Answered when it has been added; in backup
   * also when it arrived too late and was dropped.
   */
  PushReply push(1: PushRequest request, 2: binary gradient)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised)

  /** Pull the parameters, or a slot; answered once the version is reached. */
  PullReply pull(1: PullRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised, 6: common.NotYet not_yet)

  /**
   * Begin an attempt: calls of an earlier one are refused from now on, gradients for the next step are dropped unless
   * they are complete, and calls that wait fail with Rewound. May be repeated. An attempt that another process of the
   * manager has begun under the same number, and not kept, is refused with Rewound: begin another one.
   */
  FenceReply fence(1: FenceRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised)

  /**
   * Go on from a version, in an attempt that `fence` has begun. May be repeated. A version that is lost, since the
   * shard was restarted after `fence`, is refused with Rewound: begin another attempt.
   */
  RewindReply rewind(1: RewindRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised)

  /** List the slots of the optimiser's state, to be pulled one by one; they do not change until the next step. */
  StateReply state(1: StateRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised)

  /**
   * Do not wait for a slice any more, in backup. Every worker may report the same loss; it counts once. In the other
   * modes nothing happens: in bsp other workers push the slice.
   */
  ForfeitReply forfeit(1: ForfeitRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Rewound rewound, 5: common.Unauthorised unauthorised)
}

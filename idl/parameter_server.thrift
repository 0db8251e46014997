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
 * k + 1). The shard steps when the pushed counts sum to the assignment's total.
 *
 * That is mode bsp. In ssp and asp every push is a step of its own, and the version is the number of steps. In
 * backup a step is taken once enough gradients have come; pull(version j), where j is the next assignment's
 * iteration, which may be later than k + 1. See Synchronisation in common.thrift.
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
   */
  2: map<string, double> options
}

struct OpenRequest {
  1: common.Identity identity
  2: string dtype                   // "float32" or "float64"
  3: string optimizer               // "sgd", "adam" or "adamw"
  4: list<ParameterGroup> groups
  5: optional common.Synchronisation synchronisation  // as the manager said; the same for every worker
}

struct OpenReply {
  1: common.Identity identity
  2: bool initialised               // false: call `initialise`; the first to do so decides
  3: i64 version                    // the number of optimiser steps so far; meaningless until initialised
}

struct InitialiseRequest {
  1: common.Identity identity
  2: i64 version                    // the iteration of the first assignment; 0 in a new job
}

struct InitialiseReply {
  1: common.Identity identity
  2: bool accepted                  // false: somebody else was first, whose parameters hold
}

struct PushRequest {
  1: common.Identity identity
  2: common.Assignment assignment   // count must be at least 1
  3: list<ParameterGroup> groups    // the options from this step on; left out or empty: unchanged.
                                    // In ssp and asp, each worker's hold for its own gradients.
}

struct PushReply {
  1: common.Identity identity
  2: i64 iteration
}

struct PullRequest {
  1: common.Identity identity
  2: i64 version                    // wait until at least so many steps are done; -1: whatever there is now
}

struct PullReply {
  1: common.Identity identity
  2: i64 version
  3: double waited                  // seconds for which the shard held this answer back
  4: binary parameters
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
  OpenReply open(1: OpenRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable)

  InitialiseReply initialise(1: InitialiseRequest request, 2: binary parameters)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable)

  /**
   * `gradient` is the mean over the assignment's samples. Answered when it has been added; in backup also
   * when it came too late and was dropped.
   */
  PushReply push(1: PushRequest request, 2: binary gradient)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable)

  /** Answered when the version is there. */
  PullReply pull(1: PullRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable)

  /** The same loss may be told by every worker; it counts once. */
  ForfeitReply forfeit(1: ForfeitRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable)
}

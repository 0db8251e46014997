/**
 * Definitions that all services share: framing, identities, assignments, and the exceptions that calls may raise.
 *
 * Transport: TFramedTransport over TCP. Every message is a big-endian i32 length followed by that many
 * bytes. Protocol: TBinaryProtocol, strict. One call at a time on a connection is enough; calls that are
 * pipelined are answered under their own sequence ids, not always in order.
 *
 * Connect when there is a call to make: a connection on which no whole call has come within 10 seconds of connecting is
 * refused and closed. A refusal of a connection is an application exception (a message of type 3) that answers no call,
 * so its method's name is empty and its sequence id 0; of type 10 it says that a deadline has passed, and the call may
 * be made again on another connection.
 *
 * Units: times are seconds, batch sizes are samples, memory and CPU usage are fractions from 0 to 1.
 */
namespace py evenpace_idl.common

/** A mistake of the caller; the same call will fail again. `message` names the value and what is allowed. */
exception InvalidRequest {
  1: string message
}

/**
 * A call from a worker that is not, or no longer, a member of the job: it never joined, it left, it was silent for too
 * long, or another incarnation has taken its name. It may join again, as a new incarnation.
 */
exception NotMember {
  1: string message
  2: optional string ended          // why the run of that member is over, where it has ended well: nothing is left to do
}

/** A call that the service cannot serve now (it is shutting down, or still starting); to be repeated later. */
exception Unavailable {
  1: string message
}

/**
 * A call from a worker that is not in the shard's attempt: the job was rewound, or the shard was restarted and has
 * lost the state that the caller relies on. See `recover` of the BatchSizeManager.
 */
exception Rewound {
  1: string message
  2: i64 attempt                    // the attempt that the shard is in
}

/**
 * A call whose time to wait, the request's field `wait`, is over before the event that it waits for; to be repeated.
 * So both sides notice that the other still responds. A call without `wait` is answered when the event has occurred,
 * or so after 600 s at a shard, 3600 s at the manager. The message says what the event waits for.
 */
exception NotYet {
  1: string message
}

/**
 * A call that the connection is not allowed to make: it has not authenticated itself, its token is not valid (any
 * more), or the token is another job's. The same call on the same connection will fail again.
 */
exception Unauthorised {
  1: string message
}

/**
 * The first call of every connection, where a service requires tokens. From then on the connection may name one job
 * only: the manager's job of that name, and the shards' jobs whose names begin with it and "/". A service that
 * requires no tokens accepts any. Before this call, only few and short messages are accepted, and for a short time.
 *
 * Send a token over TLS only. The services' operator issues one for a job; see docs/security.md.
 */
struct AuthenticateRequest {
  1: string job
  2: string token
}

struct AuthenticateReply {
  1: string job                     // as in the request
}

/**
 * The caller's identity. `worker` is a name that is unique in the job; `incarnation` is drawn at random at each start
 * of the worker's process (such as a UUID), so that a restarted worker is never taken for the old one.
 */
struct Identity {
  1: string job
  2: string worker
  3: string incarnation
}

/**
 * One worker's part of one iteration, and the unit in which everything is counted.
 *
 * `iteration` counts from 0 over the whole job; `epoch` from 0. The worker takes the samples at positions
 * start, start + 1, ..., start + count - 1 of the epoch's permutation. `total` is the size of the whole
 * batch: the counts of all workers sum to it, exactly. `count` may be 0 in the last, smaller batch of an
 * epoch: then the worker pushes no gradient, but it reports and pulls like the others.
 */
struct Assignment {
  1: i64 iteration
  2: i64 epoch
  3: i64 start
  4: i64 count
  5: i64 total
  6: optional i64 attempt           // number of times that the job has been rewound before; left out: 0
  7: optional i64 batch_start       // the first position of the whole batch
  8: optional i64 at_once           // micro-batches that the worker computes at once; left out: 1
  // For learning rates; all three are left out while all batches have had the size in JobSpec, M0.
  9: optional i64 size              // samples of a whole batch, M; an epoch's last has fewer
 10: optional double gain           // progress of the iteration, in iterations of M0: (V/M0 + S) / (V/M + S), with the
                                    // gradient's variance V for one sample and the true gradient's squared norm S
 11: optional double progress       // the sum of the gains of all iterations before
}

/**
 * The place at which a batch begins: a position of an epoch's permutation. Where a batch begins at the end of an epoch,
 * or with drop_last too close to it, it is the next epoch's first.
 */
struct Place {
  1: i64 epoch
  2: i64 start
}

/**
 * How the workers of a job wait for each other, and sum gradients. Left out anywhere, it means mode "bsp".
 *   "bsp": an iteration is one step with all workers' gradients;
 *   "ssp", "asp": each push is a step of its own; a worker pulls version -1. The manager lets no worker begin
 *       an iteration more than `staleness` after the slowest worker's current one, or does not limit it;
 *   "backup": an iteration is one step with the first `replicas_to_aggregate` gradients, or all where fewer
 *       arrive. Later ones are accepted and dropped, and a straggler's next assignment skips iterations.
 */
struct Synchronisation {
  1: string mode                            // "bsp", "ssp", "asp" or "backup"
  2: optional i64 staleness                 // ssp; at least 0
  3: optional i64 replicas_to_aggregate     // backup; at least 1
  4: optional bool exact                    // bsp, in a job with micro-batches: gradients are pushed as sums in fixed
                                            // point; see parameter_server.thrift. Left out: false
}

/**
 * The squared norms of the gradients that a step was taken with, statistics left out. g_i is the mean gradient of
 * contribution i, of a worker or of a micro-batch, over its b_i samples; g = sum(b_i g_i) / sum(b_i). From them
 * follows the gradient noise: S = (weighted - samples * squared) / (contributions - 1) estimates the trace of the
 * covariance of one sample's gradient, and squared - S / samples the squared norm of the true gradient.
 * Where the optimiser is Adam or of its kin, each g_i and g is multiplied, element by element, by a preconditioner
 * 1 / (sqrt(v) + eps), with v the bias-corrected second moment of earlier steps.
 */
struct GradientNorms {
  1: i64 iteration                  // that the step was taken in
  2: i64 contributions              // the number of contributions with samples
  3: i64 samples                    // sum(b_i)
  4: double weighted                // sum(b_i |g_i|^2), finite
  5: double squared                 // |g|^2, finite
  6: optional double weight         // sum(n_i), where g_i is a mean over n_i tokens or the like; b_i is then the part
                                    // n_i / sum(n_i) of `samples`, and contributions without tokens do not count. Left
                                    // out: by samples, or over the whole batch
}

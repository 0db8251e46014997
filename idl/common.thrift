/**
 * What both services share: how a call is framed, and the exceptions that any call may raise.
 *
 * Transport: TFramedTransport over TCP. Every message is a big-endian i32 length followed by that many
 * bytes. Protocol: TBinaryProtocol, strict. One call at a time on a connection is enough; calls that are
 * pipelined are answered under their own sequence ids, not always in order.
 *
 * Units: times are seconds, batch sizes are samples, memory and CPU usage are fractions from 0 to 1.
 */
namespace py evenpace_idl.common

/** The caller did something wrong; the same call again will fail again. `message` names the value. */
exception InvalidRequest {
  1: string message
}

/**
 * The caller is not, or no longer, a member of the job: it never joined, it left, it was silent for too
 * long, or another incarnation has taken its name. It may join again, as a new incarnation.
 */
exception NotMember {
  1: string message
}

/** The service cannot serve this now (it is shutting down, or has not started to serve); try later. */
exception Unavailable {
  1: string message
}

/**
 * A shard and the caller are not in the same attempt: the job was rewound, or the shard was started again and
 * has forgotten what the caller relies on. See `recover` of the BatchSizeManager.
 */
exception Rewound {
  1: string message
  2: i64 attempt                    // that the shard is in
}

/**
 * What the call waits for has not come within the seconds that the caller gave as `wait`, and the caller may ask
 * again: so both sides see that the other is still there. Who gives none is answered whenever it has come.
 */
exception NotYet {
  1: string message
}

/**
 * The connection may not do this: it has not authenticated itself, its token is not valid (any more), or the token
 * is another job's. The same call on the same connection will fail again.
 */
exception Unauthorised {
  1: string message
}

/**
 * Where a service asks for tokens, `authenticate` is the first call of every connection. From then on it may have
 * to do with one job only: the manager's of that name, and the shards' whose names begin with it and "/". A service
 * that asks for none takes any token. Until then, only short messages are taken, and not for long.
 *
 * Send a token over TLS only. One is issued for a job by who runs the services; see docs/security.md.
 */
struct AuthenticateRequest {
  1: string job
  2: string token
}

struct AuthenticateReply {
  1: string job                     // as in the request
}

/**
 * Who is calling. `worker` is a name that is unique in the job; `incarnation` is drawn anew at each start
 * of the worker's process (a UUID will do), so that a restarted worker is never taken for the old one.
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
  6: optional i64 attempt           // how often the job has been rewound before; left out: 0
  7: optional i64 batch_start       // the first position of the whole batch
}

/**
 * How the workers of a job wait for each other. Left out anywhere, it means mode "bsp".
 *   "bsp": an iteration is one step with everybody's gradient;
 *   "ssp", "asp": each push is a step of its own; a worker pulls version -1. The manager lets no worker begin
 *       an iteration more than `staleness` after the slowest worker's current one, or does not limit it;
 *   "backup": an iteration is one step with the first `replicas_to_aggregate` gradients, or all where fewer
 *       can come. Later ones are taken and dropped, and a late worker's next assignment skips iterations.
 */
struct Synchronisation {
  1: string mode                            // "bsp", "ssp", "asp" or "backup"
  2: optional i64 staleness                 // ssp; at least 0
  3: optional i64 replicas_to_aggregate     // backup; at least 1
}

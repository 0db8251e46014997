/**
 * Local partitions (LB-BSP, section 3.5): each worker holds its own part of the data. Where workers take
 * batches of different sizes, they go through their parts at different rates; the DataPartitionManager has slower
 * workers hand samples over to faster ones, so that each sample is used about as often as any other.
 *
 * A sample is known by its origin, the worker whose data set has it, and its index there. It is used by its
 * origin, or by one worker that it was handed to: the origin records which. A worker hands over samples of its
 * own, or returns received ones to their origin.
 *
 * A worker's life:
 *   1. listen for its peers (PartitionPeer), and call join repeatedly until the answer has `ready`;
 *   2. train on its samples, going through them in an order of its own; report in between, from a thread of its
 *      own. Where an answer has another generation than the report: take its members, begin a new traversal,
 *      and count from 0. Samples that were handed to a worker that is no longer a member, in that incarnation,
 *      are the origin's own again; those of an origin that is a member in another incarnation are dropped;
 *   3. make the `moves` of an answer, at any pace, by calls of the receiver's `take`: a sample that is on its way
 *      is not used any more, and is kept until the call is answered, or the receiver has left. Then report `moved`;
 *   4. leave. A worker that gets NotMember drops received samples, and joins as another incarnation; once that is
 *      ready, all samples of its own data set are its own again.
 */
namespace py evenpace_idl.data_partition

include "common.thrift"

struct JoinRequest {
  1: common.Identity identity
  2: string address                 // HOST:PORT at which its peers reach it
  3: i64 samples                    // in its own data set; at least 1
}

struct ReportRequest {
  1: common.Identity identity
  2: i64 generation                 // of the last answer whose members and moves it has taken
  3: i64 samples                    // samples that it has now
  4: i64 drawn                      // samples that it has used in this generation, repeated ones included
  5: i64 iterations                 // iterations of the job over which it has used them
  6: bool moved                     // whether the moves of this generation are done, or impossible
}

struct Member {
  1: string worker
  2: string incarnation
  3: string address
}

struct Move {
  1: string receiver                // a member
  2: i64 samples                    // most samples to move
}

struct PartitionReply {
  1: common.Identity identity
  2: bool ready                     // all workers have joined, and none holds samples of an earlier incarnation
  3: i64 dataset_size               // samples of all workers' own data sets; 0 until all have joined
  4: i64 generation
  5: list<Member> members           // left out where the report was of this generation
  6: list<Move> moves               // to be made by this worker
}

struct LeaveRequest {
  1: common.Identity identity
}

struct LeaveReply {
  1: common.Identity identity
}

service DataPartitionManager {
  /** Authenticate the connection: its first call, where a service requires tokens; see AuthenticateRequest. */
  common.AuthenticateReply authenticate(1: common.AuthenticateRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  PartitionReply join(1: JoinRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  PartitionReply report(1: ReportRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  LeaveReply leave(1: LeaveRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)
}

/** An array in row-major order; `dtype` is NumPy's name of a fixed-size number, such as float32 or int64. */
struct Array {
  1: string dtype
  2: list<i64> shape
  3: binary data                    // little-endian
}

/** One of the sender's own samples: its arrays and numbers, in the order in which the sample nests them. */
struct Sample {
  1: i64 index
  2: list<Array> arrays
}

struct TakeRequest {
  1: common.Identity identity       // the sender's
  2: string receiver                // the receiver's incarnation
  3: i64 number                     // of the sender's calls to this receiver, from 1; the same if it is repeated
  4: list<Sample> samples           // the sender's own samples, which the receiver uses from now on
  5: list<i64> returned             // indices of the receiver's own samples that the sender had
}

struct TakeReply {
  1: common.Identity identity
  2: i64 number
}

/**
 * The service of each worker for its peers, over TLS where the job has it. Peers require no tokens, which they could
 * not check: a caller knows the receiver's incarnation only if the DataPartitionManager has accepted it as a member.
 */
service PartitionPeer {
  /** Take all samples or none; a call that is repeated takes nothing twice. */
  TakeReply take(1: TakeRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable)
}

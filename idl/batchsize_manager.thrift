/**
 * The BatchSizeManager: gives every worker of a job its part of the next batch, so that all finish together.
 *
 * A worker's life:
 *   1. join: answered once the job has all its workers, with the first assignment; where a job goes on from a
 *      checkpoint, the manager may ask for `resume` first;
 *   2. in each iteration: compute the mean gradient over the assignment's samples, push it to every shard of
 *      the parameter server (see parameter_server.thrift), then report; the answer is the next assignment
 *      (the paper's blocking mode: it comes when every member has reported). If the answer names lost
 *      slices, pass them to every shard's `forfeit`. Then pull the new parameters. The answer to join may
 *      name another way to wait for each other, which the worker passes on in the shards' `open`; see
 *      Synchronisation in common.thrift;
 *   3. leave. A worker that is released (see AssignmentReply) is out already.
 *
 * Where the manager plans ahead (the paper's non-blocking mode), the answer to join gives the first assignment
 * and `ahead` those that follow. A report then names the last iteration that the worker has an assignment
 * for, as `known`, and is answered once a later one is planned: beside the computing, in a thread of its own.
 * Instead of a parameter server, workers may reduce their gradients among themselves: then they do not push
 * and pull.
 *
 * A connection that closes means that the worker has died, unless it joins again with the same incarnation
 * within the manager's grace period. While a call is being answered, nothing need be sent.
 *
 * The permutation. Position p of epoch e holds the index of a sample in the data set, 0 to dataset_size - 1:
 *   with shuffle off, p itself;
 *   with shuffle on, the index that comes p-th when all indices i are sorted by (mix(base + (i + 1) G), i),
 *   where base = mix(mix(seed + G) + epoch + G), G = 0x9E3779B97F4A7C15, all in unsigned 64-bit arithmetic
 *   that wraps, and mix is SplitMix64's finaliser:
 *     z = (z ^ (z >> 30)) times 0xBF58476D1CE4E5B9;  z = (z ^ (z >> 27)) times 0x94D049BB133111EB;  z ^ (z >> 31).
 * It depends on nothing else: not on the number of workers, not on how batches are split.
 */
namespace py evenpace_idl.batchsize_manager

include "common.thrift"

/** What every worker of a job must agree on. The first to join creates the job; others must say the same. */
struct JobSpec {
  1: i64 dataset_size       // samples; at least 1
  2: i64 total_batch_size   // samples in a whole batch, over all workers; 1 to dataset_size
  3: i64 seed               // of the permutation; 0 or more
  4: bool shuffle
  5: bool drop_last         // leave out an epoch's last batch if it is smaller
}

/** What one worker can take: a batch size between the two, a multiple of `granularity` where possible. */
struct Bounds {
  1: i64 minimum            // samples; at least 1
  2: i64 maximum            // samples; at least minimum
  3: i64 granularity        // samples; at least 1
}

/** Where a job goes on that was saved; see `checkpoint`. All workers must name the same iteration. */
struct Resume {
  1: i64 iteration                  // the first that has not been trained; at least 0
  3: optional i64 epoch             // where that iteration's batch begins; to be given where the batch size
  4: optional i64 start             // has changed, since the iteration does not tell then
  5: optional i64 total_batch_size  // that the job is to go on with, 1 to dataset_size; left out: as in JobSpec
  6: optional i64 learned_bytes     // length of what `checkpoint` gave as learned, for `resume`; left out: 0
}

struct JoinRequest {
  1: common.Identity identity
  2: JobSpec job
  3: Bounds bounds
  4: optional Resume resume         // of no effect once the job runs
  5: optional bool unreleasable     // never release this worker: others could not go on without it
  6: optional double wait           // seconds for which the answer may be held back; see NotYet
  7: optional string device         // of which kind it is, in words, such as a GPU's name: whoever has the same is
                                    // taken to be as fast, until it is measured
  8: optional bool heartbeats       // this worker will send them, as often as the answer wants: once it is silent,
                                    // others do its part, and may have its name. Left out: not before it has sent one
}

struct ReportRequest {
  1: common.Identity identity
  2: i64 iteration                  // the iteration that this worker has just finished
  3: double batch_processing_time   // seconds, waiting for others left out; at least 1e-9 unless the count was 0
  4: double waiting_time            // seconds spent waiting in the parameter server since the last report
  5: double cpu_usage               // of the CPUs that the worker may use, the share that others take now; 0 to 1
  6: double memory_usage            // of the memory that the worker may use, by anybody; 0 to 1
  7: optional i64 known             // answer with the assignment after this iteration's; left out: after `iteration`
  8: optional i64 maximum           // samples that have proved to be all it can take; at least 1, for good
  9: optional i64 attempt           // of the assignment that is finished; left out: the present one
 10: optional i64 start             // of the assignment that is finished; left out: the last that was given
 11: optional double wait           // as in JoinRequest
}

/** A slice of an iteration's batch whose worker has gone; if it had not pushed yet, it never will. */
struct Lost {
  1: i64 iteration
  2: i64 start
  3: i64 count
  4: i64 total                      // of the whole batch
}

struct AssignmentReply {
  1: common.Identity identity       // as in the request
  2: i64 reported_iteration         // as in the request; -1 in the answer to join
  3: common.Assignment assignment   // the next
  4: double waited                  // seconds for which the manager held this answer back
  5: list<Lost> lost                // of the reported iteration and later, for `forfeit`
  6: string run                     // drawn when the job was created: the job's name at the parameter
                                    // server is job + "/" + run, so that each run starts afresh there
  7: optional common.Synchronisation synchronisation  // in the answer to join; left out: bsp
  8: optional i64 lookahead         // in the answer to join: iterations planned ahead of the reports; left out: 0
  9: optional list<common.Assignment> ahead  // those after `assignment` that are planned already
 10: optional string released       // the worker is out of the job, since that is faster without it: why.
                                    // There is no assignment then, and nothing more to report but
                                    // what was given ahead.
 11: optional i64 recover           // there is no assignment: fence the shards with this attempt, then call
                                    // `rewind`; see `recover`
 13: optional double heartbeat      // in the answer to join: seconds between heartbeats; left out: none wanted
 14: optional bool report_on        // there is no assignment: nothing more is planned before all that was given is
                                    // reported. Only to who named as `known` what it has still to report
 15: optional bool resume           // in the answer to join: there is no assignment, and no such job yet. Call
                                    // `resume` with what was learned, then join
}

struct ResumeReply {
  1: common.Identity identity       // as in the request
}

struct HeartbeatRequest {
  1: common.Identity identity
  2: i64 attempt                    // that the worker is in
}

struct HeartbeatReply {
  1: common.Identity identity
  2: optional i64 recover           // as in AssignmentReply
  3: optional bool paused           // nothing is planned until it is said otherwise: the worker waits for as long
                                    // as it takes
}

struct RecoverRequest {
  1: common.Identity identity
  2: i64 attempt                    // that the worker is in, and cannot go on with
}

struct RecoverReply {
  1: common.Identity identity
  2: i64 attempt                    // the new one
}

struct RewindRequest {
  1: common.Identity identity
  2: i64 attempt                    // the new one
  3: i64 iteration                  // that all shards can go on from
  4: optional double wait           // as in JoinRequest
}

struct CheckpointRequest {
  1: common.Identity identity
}

struct CheckpointReply {
  1: common.Identity identity
  3: optional i64 total_batch_size  // for Resume, as an operator wants it now
  4: binary learned                 // for `resume`; nobody else need understand it
}

struct LeaveRequest {
  1: common.Identity identity
}

struct LeaveReply {
  1: common.Identity identity
}

struct HistoryRequest {
  1: string job
  2: i64 first_iteration            // records from this iteration on
  3: i64 limit                      // how many iterations at most, 1 to 1000; there may be fewer in an answer
                                    // where that would be too long, but at least one if there is any
}

/**
 * A complete iteration. The figures of its workers are in columns, since there may be thousands: each column is an
 * array of 8 bytes for each worker, little-endian, in the order of the workers' names. Batch sizes are signed
 * integers (i64), all others are IEEE 754 doubles. So the figure of the worker at place p is at bytes 8 p to 8 p + 7.
 */
struct IterationRecord {
  1: i64 iteration
  2: i64 epoch
  3: i64 start                      // the first position of the batch
  4: i64 total                      // samples
  5: i64 attempt                    // that it was completed in
  6: double duration                // seconds from this iteration's release, or from the completion of the
                                    // one before it if that came later, until it was complete
  7: i32 workers                    // whose report it was complete with: the index of their names in History.workers
  8: binary batch_sizes             // samples
  9: binary batch_processing_times  // seconds, waiting left out
 10: binary waiting_times           // seconds, at the manager's and the parameter server's barriers together
 11: binary cpu_usages              // share of the worker's CPUs that others take, 0 to 1
 12: binary memory_usages           // share of its memory that is in use, 0 to 1
 13: binary predicted_speeds        // samples per second, before the iteration; NaN where nothing was predicted
}

struct History {
  1: string run                     // as in AssignmentReply
  2: list<list<string>> workers     // names, a list for each set of workers that an iteration had
  3: list<IterationRecord> iterations  // complete ones only, oldest first
}

/** Which jobs; a token of all jobs is needed for all, where tokens are asked for. */
struct JobsRequest {
  1: optional string job            // left out: all
}

/** A job as it stands. */
struct JobSummary {
  1: string job
  2: string run                     // as in AssignmentReply
  3: string state                   // gathering, running, paused, recovering, failed or ended
  4: string reason                  // why, where it is recovering, has failed or ended; else empty
  5: i64 workers                    // it starts with so many
  6: i64 members
  7: i64 iteration                  // the first that is not complete
  8: i64 attempt                    // how often it was rewound; iterations before that may be under way again
  9: string policy
 10: string predictor               // empty where the policy has none
 11: string mode                    // as in Synchronisation
 12: JobSpec spec
 13: i64 batch_size                 // samples of a whole batch, as things are
 14: double age                     // seconds for which this manager has had it
}

struct JobsReply {
  1: list<JobSummary> jobs          // those that run, then the last that have ended
  2: string version                 // the manager's
  3: double uptime                  // seconds
}

struct StatusRequest {
  1: string job
  2: i64 events_after               // the number of the last event that is known; -1 for none
}

struct MemberStatus {
  1: string worker
  2: string state                   // working, waiting, silent (others do its part), away (its connection broke)
                                    // or leaving (it is released, or drained)
  3: Bounds bounds
  4: i64 iteration                  // that it works on, or would next
  5: double silence                 // seconds since anything was heard of it
}

/** Something that happened. */
struct Event {
  1: i64 number                     // counts up within a job
  2: double at                      // seconds since 1970
  3: string text
}

struct StatusReply {
  1: JobSummary summary
  2: list<MemberStatus> members     // in the order of their slices
  3: list<Event> events             // oldest first; of those asked for, the last 200
}

/** How batches are split from now on. */
struct Balancing {
  1: string policy                  // as in `evenpace manager --policy`
  2: optional string predictor      // left out: the present one
  3: optional double tolerance      // at least 0 and below 1; left out: the present one
}

/** One thing to be changed: exactly one of the fields 2, 3, 5, 6 and 7 is given. */
struct ControlRequest {
  1: string job
  2: optional Balancing balancing
  3: optional i64 total_batch_size  // samples, 1 to the data set's size; with --scale-batch, of `workers` members
  4: optional string worker         // whom 5 or 6 is about
  5: optional Bounds bounds
  6: optional bool drain            // let it finish what it has been given, then release it; only true
  7: optional bool paused           // whether nothing more is to be planned, until it is said otherwise
}

struct ControlReply {
  1: string said                    // what was done, in words
}

service BatchSizeManager {
  /** See AuthenticateRequest: the first call of a connection, where a service asks for tokens. */
  common.AuthenticateReply authenticate(1: common.AuthenticateRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  AssignmentReply join(1: JoinRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised, 5: common.NotYet not_yet)

  /**
   * As join, but answered at once: begins a job that goes on from a checkpoint, with what `checkpoint` gave as
   * learned, up to 48 MiB. Of no effect but that of join where there is such a job already. To be followed by join.
   */
  ResumeReply resume(1: JoinRequest request, 2: binary learned)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  AssignmentReply report(1: ReportRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised, 5: common.NotYet not_yet)

  /** What policy and predictors have learned, to be kept beside the parameters. */
  CheckpointReply checkpoint(1: CheckpointRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  /**
   * "I am alive", in between. Who is silent for long, while others wait, has its part of the iteration given to
   * them, and is welcome when it is back.
   */
  HeartbeatReply heartbeat(1: HeartbeatRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  /**
   * The shards have lost what this attempt relies on: begin another. The same may be said again, by all members.
   * Each then calls `fence` with the new attempt at every shard, and `rewind` here with the iteration that all
   * of them can go on from: the one where they are, if it is the same for all, or the latest of which all have a
   * checkpoint; and `rewind` of every shard with the iteration that the answer begins with.
   */
  RecoverReply recover(1: RecoverRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  /** Answered with the first assignment of the new attempt; the first member to say decides where it begins. */
  AssignmentReply rewind(1: RewindRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised, 5: common.NotYet not_yet)

  LeaveReply leave(1: LeaveRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  /**
   * What a job's iterations were like, also of one that has ended, as far as it is remembered. To have all, ask
   * again from the last one's successor until there are none.
   */
  History history(1: HistoryRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  /** What there is. */
  JobsReply jobs(1: JobsRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  /** A job, its members, and what happened lately. */
  StatusReply status(1: StatusRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  /**
   * Change how a running job is run, from the first iteration on that is not planned; no iteration is lost.
   * Whoever may join a job may change it. The change outlives the manager, where that keeps its state.
   */
  ControlReply control(1: ControlRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)
}

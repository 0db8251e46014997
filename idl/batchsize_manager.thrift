/**
 * The BatchSizeManager: gives every worker of a job its part of the next batch, so that all finish together.
 *
 * A worker's life:
 *   1. join: answered once the job has all its workers, with the first assignment;
 *   2. in each iteration: compute the mean gradient over the assignment's samples, push it to every shard of
 *      the parameter server (see parameter_server.thrift), then report; the answer is the next assignment
 *      (the paper's blocking mode: it comes when every member has reported). If the answer names lost
 *      slices, pass them to every shard's `forfeit`. Then pull the new parameters. The answer to join may
 *      name another way to wait for each other, which the worker passes on in the shards' `open`; see
 *      Synchronisation in common.thrift;
 *   3. leave.
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

struct JoinRequest {
  1: common.Identity identity
  2: JobSpec job
  3: Bounds bounds
}

struct ReportRequest {
  1: common.Identity identity
  2: i64 iteration                  // the iteration that this worker has just finished
  3: double batch_processing_time   // seconds, waiting for others left out; at least 1e-9 unless the count was 0
  4: double waiting_time            // seconds spent waiting in the parameter server since the last report
  5: double cpu_usage               // of the CPUs that the worker may use, the share that others take now; 0 to 1
  6: double memory_usage            // of the memory that the worker may use, by anybody; 0 to 1
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
  3: i64 limit                      // how many iterations at most; 1 to 1000
}

struct WorkerRecord {
  1: string worker
  2: i64 batch_size
  3: double batch_processing_time
  4: double waiting_time            // at the manager's and the parameter server's barriers together
  5: double cpu_usage
  6: double memory_usage
  7: optional double predicted_speed  // samples per second, before the iteration; absent if there was none
}

struct IterationRecord {
  1: i64 iteration
  2: i64 epoch
  3: i64 total                      // samples
  4: double duration                // seconds from this iteration's release, or from the completion of the
                                    // one before it if that came later, until it was complete
  5: list<WorkerRecord> workers     // whose report it was complete with
}

struct History {
  1: list<string> members           // names, in the order of their slices
  2: list<IterationRecord> iterations  // complete ones only, oldest first
  3: string policy
  4: list<string> events            // the last things that happened, in words
  5: string run                     // as in AssignmentReply
}

service BatchSizeManager {
  AssignmentReply join(1: JoinRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable)

  AssignmentReply report(1: ReportRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable)

  LeaveReply leave(1: LeaveRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable)

  /** For dashboards and reports; open to anybody who can connect. */
  History history(1: HistoryRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable)
}

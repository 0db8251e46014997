/**
 * The BatchSizeManager: gives every worker of a job its part of the next batch, so that all finish together.
 *
 * A worker's life:
 *   1. join: answered once the job has all its workers, with the first assignment; where a job resumes from a
 *      checkpoint, the manager may ask for `resume` first;
 *   2. for each assignment: compute the mean gradient over its samples, push it to every shard of the parameter
 *      server (see parameter_server.thrift), then report; the answer is the next assignment (the paper's blocking
 *      mode: it comes when every member has reported). If the answer names lost slices, pass them to every shard's
 *      `forfeit`. Now compare the assignment's iteration with the one reported:
 *        a later one: pull the new parameters, version = that iteration, and go on with them;
 *        THE SAME ONE, in bsp: a part of this iteration that a worker has left undone, and that this worker was given.
 *          Do not pull: the new parameters come only after it. Compute it with the present ones, push and report it
 *          like any other. There may be several such parts in a row. A worker that pulls instead waits for itself;
 *          one that has not reported a part for the manager's report time-out, and ten times as long as it should
 *          take, is taken out.
 *      The answer may also say `released` or `recover` instead, see AssignmentReply. The answer to join may name a
 *      synchronisation mode other than bsp, which the worker passes on in the shards' `open`; see Synchronisation in
 *      common.thrift;
 *   3. leave. A worker that is released (see AssignmentReply) has left already.
 *
 * Where the manager plans ahead (the paper's non-blocking mode), the answer to join gives the first assignment
 * and `ahead` those that follow. A report then names the last iteration that the worker has an assignment
 * for, as `known`, and is answered once a later one is planned; the worker sends it from a thread of its own while it
 * computes.
 *
 * Instead of using a parameter server, workers may all-reduce their gradients, each weighted by its count over the total:
 * then they do not push and pull. All workers of a job name the same `exchange` when they join:
 *   parameter_server (or left out): as above;
 *   fixed_group: they all-reduce in a group that something else has formed. If one of them cannot go on, or the manager
 *     is started again, the job fails, to be started again from a checkpoint;
 *   formed_group: they all-reduce in groups that the manager forms, another in each attempt. Workers may come and go.
 *
 * A worker's life with formed_group, in mode bsp:
 *   1. Serve a store (a key-value server at which the members of a group find each other, such as a TCPStore of
 *      PyTorch) for as long as this worker lives, at an address that the others reach. Join. Keep `steps`, the number
 *      of steps that the parameters have had, at first the iteration that the job begins at; and `formed`, an attempt,
 *      none at first.
 *   2. The answers to join, reports and heartbeats may say `recover`: the job begins, or members have come or gone. Stop
 *      waiting for other members, drop the group, and call `rewind` with that attempt, `steps` as the iteration, `store`,
 *      `formed` where there is one, and `place`. This call is a rendezvous: it is answered once all members have made it,
 *      with an assignment and a `Group`; or with a later `recover`, for which the same is to be done again. Send
 *      heartbeats meanwhile.
 *   3. Form the group: `size` members, this one with its `rank`, at `store`, under a name that only this attempt has. If
 *      it has a `source`, that rank then sends all of its state to all: parameters, optimiser, whatever training goes on
 *      with. A member that `lacks` the state forgets its `formed` before it receives, and takes what comes; the others
 *      keep their own. Once the group is complete and this member has all of the state, it sets `formed` to the attempt
 *      and `steps` to the assignment's iteration.
 *   4. In each iteration: compute, all-reduce, and if the reduction is complete here, take the step, add 1 to `steps`, and
 *      report; the answer is the next assignment. Whether the reduction is complete at the others need not be known:
 *      should some have missed it, the job goes on after it nevertheless, with the state of one that has taken the step.
 *   5. If the group cannot be formed, or a reduction fails: take no step, do not report, call `recover` with the
 *      attempt of that group, and go on as in 2 with the attempt in the answer.
 *   6. Leave, or be released; the others go on.
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
 *
 * Micro-batches. A batch of X samples, in a job with micro-batches of b, has n of them: X / b rounded up, but for b > 1
 * at most X / 2 rounded down, and at least 1. All but the last two have b samples. The last has half of what the others
 * leave, rounded down, and the one before it the other half.
 */
namespace py evenpace_idl.batchsize_manager

include "common.thrift"

/** The data that a job trains on, and its order. The first worker to join creates the job; others must agree. */
struct JobSpec {
  1: i64 dataset_size       // samples; at least 1
  2: i64 total_batch_size   // samples in a whole batch, over all workers; 1 to dataset_size
  3: i64 seed               // of the permutation; 0 or more
  4: bool shuffle
  5: bool drop_last         // leave out an epoch's last batch if it is smaller
  6: optional i64 micro_batch  // samples that are computed together, 1 to total_batch_size: slices begin and end on
                            // the cuts between micro-batches. Left out: slices may begin anywhere
  7: optional map<i64, i64> schedule  // other sizes of a whole batch by the first epoch that has them, from 1 on
  8: optional list<list<double>> samples  // of a few samples at places that follow from the size, pairs of numbers by
                            // which workers see whether they have the same data: those of each pair differ by more
                            // than 0.1% of the larger one where samples differ. Empty, or left out: not compared
  9: optional i64 weight_limit  // gradients are means over something else than samples, such as tokens: each push says
                            // over how much (PushRequest.weight). Where sums are exact, at most this for each of the
                            // samples; 1 to 2^30. Left out: gradients are means over samples
 10: optional i64 total_cost // samples differ in what they cost to compute, such as in tokens, and batches are split by
                            // that: the sum over the data set of integers from 1 to 2^32 - 1, of which the dearest
                            // sample has the last. Left out: batches are split by samples
 11: optional string sorted_by  // the samples of each batch are taken by ascending cost, those of one cost in the order of
                            // the permutation, and a slice, or a micro-batch, costs as much as its dearest sample for
                            // each of its samples, since it is padded: a digest of the costs, which must be the same for
                            // all workers. Left out: in the order of the permutation
}

/** The costs of successive samples of an epoch, as in JobSpec.total_cost. */
struct Costs {
  1: i64 epoch
  2: i64 start              // position of the first in the epoch's permutation
  3: binary values          // of 32 bits each, without sign, little-endian
}

/** The batch sizes that a worker can take: from minimum to maximum, multiples of `granularity` where possible. */
struct Bounds {
  1: i64 minimum            // samples; at least 1
  2: i64 maximum            // samples; at least minimum
  3: i64 granularity        // samples; at least 1
  4: optional i64 at_once   // most micro-batches that it can compute at once, 1 to 1024; left out: 1. More than 1 only in
                            // a job with micro-batches. Field 5 of ControlRequest leaves it as it is
}

/** The position from which a saved job continues; see `checkpoint`. All workers must name the same iteration. */
struct Resume {
  1: i64 iteration                  // the first iteration that has not been trained; at least 0
  3: optional i64 epoch             // epoch and first position of that iteration's batch; needed where the batch size
  4: optional i64 start             // has changed, since they do not follow from the iteration then
  5: optional i64 total_batch_size  // the batch size to continue with, 1 to dataset_size; left out: as in JobSpec
  6: optional i64 learned_bytes     // length of CheckpointReply.learned, which `resume` sends; left out: 0
  7: optional double progress       // Assignment.progress at that iteration; left out: the iteration
}

struct JoinRequest {
  1: common.Identity identity
  2: JobSpec job
  3: Bounds bounds
  4: optional Resume resume         // of no effect once the job runs
  6: optional double wait           // seconds for which the answer may be held back; see NotYet
  7: optional string device         // the kind of the worker's device, in words, such as a GPU's name: workers of one
                                    // kind are assumed to be equally fast until they are measured
  8: optional bool heartbeats       // this worker will send heartbeats, as often as the answer says: once it is
                                    // silent, others do its part, and may take its name. Left out: only after its
                                    // first heartbeat
 12: optional i64 threads           // that it computes with, on a CPU; at least 1. Where sums are exact, the manager
                                    // logs which members differ in device or threads: their last bits may differ, too
 13: optional string run            // as in AssignmentReply: this incarnation has been in that run before, and the
                                    // manager, started again with an older state, does not know it. NotMember if there
                                    // is no such run any more, or the incarnation was taken out of it. In `resume`,
                                    // which is answered at once; then go on as a member
 14: optional string exchange       // the way in which gradients meet: parameter_server, fixed_group or formed_group, as
                                    // above; the same for all workers of a job. Left out: parameter_server
}

struct ReportRequest {
  1: common.Identity identity
  2: i64 iteration                  // the iteration that this worker has just finished
  3: double batch_processing_time   // seconds, waiting for others left out; at least 1e-9 unless the count was 0
  4: double waiting_time            // seconds spent waiting in the parameter server since the last report
  5: double cpu_usage               // share of the worker's CPUs that other processes take at present; 0 to 1
  6: double memory_usage            // occupied share of the worker's memory, by any process; 0 to 1
  7: optional i64 known             // answer with the assignment after this iteration's; left out: after `iteration`
  8: optional i64 maximum           // most samples that it has proved able to take; at least 1, holds for good
  9: optional i64 attempt           // of the assignment that is finished; left out: the present attempt
 10: optional i64 start             // of the assignment that is finished; left out: that of the last assignment
 11: optional double wait           // as in JoinRequest
 12: optional i64 at_once           // micro-batches that were computed at once, where memory allows no more, and fewer than
                                    // assigned; at least 1, holds for good
 13: optional string shards         // a text that is the same for two workers if they use the same shards, in the same
                                    // order, such as a digest of the shards' instances. Workers that use others are refused
 14: optional common.GradientNorms norms  // of the last step whose norms the worker knows: this iteration's or the one's
                                    // before; of all contributions to it, or of the worker's own
 15: optional i64 not_finite        // an iteration, this one or the one before, for which the worker's own gradient had a
                                    // NaN or an infinity, as PushReply says: the manager logs it, or ends the job
 16: optional double communication_time  // seconds of batch_processing_time in which gradients and parameters were
                                    // transferred; left out: not known
 17: optional double backward_time  // seconds of batch_processing_time from the begin of the backward pass until its last
                                    // gradient was ready to be summed over the workers, or pushed; left out: not known,
                                    // as the three below, such as where nothing is sent before that. In micro-batches
                                    // it is the last one's pass. They serve the policy `overlap`
 18: optional double first_bucket_time  // seconds of those until the first bucket of gradients was ready
 19: optional double other_buckets_time // seconds in which any bucket but the last was ready, and not summed yet over
                                    // the workers or, with a parameter server, written to all shards; others that were
                                    // ready later count in
 20: optional double last_bucket_time   // seconds from the moment when the last bucket was ready, and all others were
                                    // summed or written, until it was summed or, with a parameter server, answered by
                                    // all shards; and there also those in which the worker waited for parameters to be
                                    // transferred, before that pass
 21: optional list<Costs> costs     // in a job with costs, from the worker that has this batch's first samples: those of
                                    // samples that come next, as far as it has not told them. They decide pace alone: a
                                    // batch whose costs are not known is split by samples
}

/** A member's place in the process group of an attempt; see formed_group above. */
struct Group {
  1: i64 rank                       // this member's, from 0 to size - 1
  2: i64 size                       // members
  3: string store                   // that of rank 0, as it gave it in `rewind`: where the members meet
  4: optional i64 source            // the rank that sends its state to the others before the first iteration; left out:
                                    // all have the same
  5: optional bool lacks            // this member does not have that state, and has to take it; left out: it keeps its
                                    // own
  6: optional bool keep             // nothing is trained in this group: rank 0 writes its state down, and all go on to
                                    // another attempt
  7: optional string manager        // id of the manager's process that has formed it, for `formed_by` of `rewind`
}

/** A slice of an iteration's batch whose worker has left; if it has not been pushed yet, it never will be. */
struct Lost {
  1: i64 iteration
  2: i64 start
  3: i64 count
  4: i64 total                      // of the whole batch
}

struct AssignmentReply {
  1: common.Identity identity       // as in the request
  2: i64 reported_iteration         // as in the request; -1 in the answer to join
  3: common.Assignment assignment   // the next assignment: of a later iteration, or a further part of the reported one,
                                    // which is computed, pushed and reported before anything is pulled
  4: double waited                  // seconds for which the manager held this answer back
  5: list<Lost> lost                // of the reported iteration and later, for `forfeit`
  6: string run                     // drawn when the job was created: the job's name at the parameter
                                    // server is job + "/" + run, so that each run starts afresh there
  7: optional common.Synchronisation synchronisation  // in the answer to join; left out: bsp
  8: optional i64 lookahead         // in the answer to join: iterations planned ahead of the reports; left out: 0
  9: optional list<common.Assignment> ahead  // those after `assignment` that are planned already
 10: optional string released       // the reason why the worker was removed, since the job is faster without it.
                                    // There is no assignment then, and only those given ahead are still to be
                                    // reported.
 11: optional i64 recover           // there is no assignment: fence the shards with this attempt, then call
                                    // `rewind`; see `recover`. With formed_group: drop the group, then call `rewind`
 13: optional double heartbeat      // in the answer to join: seconds between heartbeats; left out: none wanted
 14: optional bool report_on        // there is no assignment: nothing more is planned before all assignments are
                                    // reported. Only in the answer to a report with a later iteration as `known`
 15: optional bool resume           // in the answer to join: there is no assignment, and no such job yet. Call
                                    // `resume` with the checkpoint's learned state, then join
 16: optional i64 continues         // in the answer to join: the run has begun before, and none of its workers has been
                                    // heard of since it was restored, or they have died. Its first iteration that is
                                    // not complete, for all that the manager knows
 17: optional Group group           // in the answer to rewind: the group to form before the assignment is begun; left
                                    // out unless `exchange` is formed_group
}

struct ResumeReply {
  1: common.Identity identity       // as in the request
}

struct HeartbeatRequest {
  1: common.Identity identity
  2: i64 attempt                    // the attempt that the worker is in
  3: optional double hold           // seconds for which the answer may be held back while there is no `recover` in it, or
                                    // the one that is `known`: so the worker learns at once of an attempt that begins
  4: optional i64 known             // the last `recover` that the worker was told
  5: optional bool between          // the worker is between two batches, or before its first: its script does something
                                    // else, such as an evaluation. Meanwhile it is not taken out for being late
}

struct HeartbeatReply {
  1: common.Identity identity
  2: optional i64 recover           // as in AssignmentReply
  3: optional bool paused           // the job is paused, or a member is between two batches: others wait without a
                                    // time-out
  4: optional double noise_scale    // of the job's gradients, in samples, where it is known well; for display alone
}

struct RecoverRequest {
  1: common.Identity identity
  2: i64 attempt                    // the attempt that the worker is in, and cannot go on with
}

struct RecoverReply {
  1: common.Identity identity
  2: i64 attempt                    // the new attempt
  3: optional string manager        // id of this manager's process, for `fence`
}

struct RewindRequest {
  1: common.Identity identity
  2: i64 attempt                    // the new attempt
  3: i64 iteration                  // the iteration that all shards can go on from; with formed_group, the one that this
                                    // worker's parameters are ready for: the number of steps that they have had
  4: optional double wait           // as in JoinRequest
  5: optional common.Place place    // where this iteration's batch begins, as a shard has said: the manager may have
                                    // lost a change of the batch size. Left out: as the manager has it. With
                                    // formed_group: the end of the batch of this worker's last step
  6: optional string store          // with formed_group, and needed there: address of this worker's store, HOST:PORT
  7: optional i64 formed            // with formed_group: the last attempt whose group this worker has formed, with all of
                                    // the state; below `attempt`. Left out: it has no state, or only a part
  8: optional bool kept             // with formed_group: this worker has written its state down, as `keep` has asked it
  9: optional string formed_by      // with formed_group: `manager` of the group of `formed`, since a manager that has lost
                                    // attempts gives their numbers to others. Left out: this manager's process
}

struct CheckpointRequest {
  1: common.Identity identity
}

struct CheckpointReply {
  1: common.Identity identity
  3: optional i64 total_batch_size  // for Resume: the batch size at present
  4: binary learned                 // the learned state of policy and predictors, for `resume`; opaque to workers
}

struct LeaveRequest {
  1: common.Identity identity
  2: optional bool failed           // the worker ends by an error, or was interrupted, before it has finished
}

struct LeaveReply {
  1: common.Identity identity
  2: optional bool unwritten        // the manager's disk does not take it at present: a manager that is started now would
                                    // wait for this worker, and let the next of its name go on with this run
}

struct HistoryRequest {
  1: string job
  2: i64 first_iteration            // records from this iteration on
  3: i64 limit                      // most iterations, 1 to 1000; there may be fewer in an answer
                                    // where that would be too long, but at least one if there is any
}

/**
 * A complete iteration. The figures of its workers are in columns, since there may be thousands: each column is an
 * array of 8 bytes for each worker, little-endian, in the order of the workers' names. Batch sizes are signed
 * integers (i64), as is at_once; all others are IEEE 754 doubles. So the figure of the worker at place p is at bytes
 * 8 p to 8 p + 7.
 */
struct IterationRecord {
  1: i64 iteration
  2: i64 epoch
  3: i64 start                      // the first position of the batch
  4: i64 total                      // samples
  5: i64 attempt                    // that it was completed in
  6: double duration                // seconds from this iteration's release, or from the completion of the
                                    // one before it if that came later, until it was complete
  7: i32 workers                    // the workers whose reports completed it: index of their names in History.workers
  8: binary batch_sizes             // samples
  9: binary batch_processing_times  // seconds, waiting left out
 10: binary waiting_times           // seconds, at the manager's and the parameter server's barriers together
 11: binary cpu_usages              // share of the worker's CPUs that others take, 0 to 1
 12: binary memory_usages           // share of its memory that is in use, 0 to 1
 13: binary predicted_speeds        // samples per second, before the iteration; NaN where nothing was predicted
 14: optional binary at_once        // micro-batches that were computed at once; left out: 1 by each
 15: optional common.GradientNorms norms  // of the last step whose norms were known: this iteration's or the one's before
 16: optional binary communication_times  // seconds of batch_processing_times in which gradients and parameters were
                                    // transferred, NaN where that is not known; left out: of no worker
 17: optional binary backward_times // as in ReportRequest, NaN where that is not known, as the three below; left out: of
                                    // no worker
 18: optional binary first_bucket_times  // likewise
 19: optional binary other_buckets_times // likewise
 20: optional binary last_bucket_times   // likewise
 21: optional binary costs            // of the samples, in samples of mean cost, NaN where that is not known; left out: of all
}

struct History {
  1: string run                     // as in AssignmentReply
  2: list<list<string>> workers     // names, a list for each set of workers that an iteration had
  3: list<IterationRecord> iterations  // complete, oldest first; with formed_group: reported by all
}

/** The jobs to list; where tokens are required, a list of all needs a token for all jobs. */
struct JobsRequest {
  1: optional string job            // left out: all jobs
}

/** The present state of a job. */
struct JobSummary {
  1: string job
  2: string run                     // as in AssignmentReply
  3: string state                   // gathering, running, paused, recovering, failed or ended
  4: string reason                  // why, where it is recovering, has failed or ended; where it is gathering, what is
                                    // missing, since when, and what to do; else empty
  5: i64 workers                    // the number of workers that it starts with, or is to have since `resizing`
  6: i64 members                    // the number of workers at present; others are awaited where `workers` is above it
  7: i64 iteration                  // the first iteration that is not complete
  8: i64 attempt                    // number of times that it was rewound; earlier iterations may be repeated
  9: string policy
 10: string predictor               // empty where the policy has none
 11: string mode                    // as in Synchronisation
 12: JobSpec spec
 13: i64 batch_size                 // samples of a whole batch at present
 14: double age                     // seconds for which this manager has held it
 15: string sizer                   // as in `evenpace manager --sizer`
 16: string sizing                  // why batches have the size that they have, in words; empty where it is not chosen
 17: string exchange                // the way in which gradients meet, as in JoinRequest
 18: optional i64 group_size        // members of the present attempt's group; only with formed_group, once it is decided
}

struct JobsReply {
  1: list<JobSummary> jobs          // the jobs that run, then the last that have ended
  2: string version                 // the manager's
  3: double uptime                  // seconds
}

struct StatusRequest {
  1: string job
  2: i64 events_after               // the number of the last event that the caller knows; -1 for none
}

struct MemberStatus {
  1: string worker
  2: string state                   // working, waiting, between batches (the others have waited for it for long),
                                    // silent (they do its part), away (its connection broke) or leaving (it is
                                    // released, or drained)
  3: Bounds bounds
  4: i64 iteration                  // the iteration that it works on, or would next
  5: double silence                 // seconds since its last call
  6: optional string device         // the kind of its device, as in JoinRequest; left out where it does not say
  7: optional i64 rank              // in the present attempt's group, as in Group; left out where it is in none
}

/** A change of the group of a job with formed_group, after which an iteration was completed. */
struct GroupChange {
  1: i64 attempt                    // that began with it
  2: i64 iteration                  // the first one of that attempt
  3: i64 size                       // members of the new group
  4: string why
  5: double until_plan              // seconds from the end of the last iteration before the change until `iteration` was
                                    // planned
  6: double until_step              // seconds from that end until `iteration` was complete
}

/** An event of a job. */
struct Event {
  1: i64 number                     // counts up within a job
  2: double at                      // seconds since 1970
  3: string text
}

struct StatusReply {
  1: JobSummary summary
  2: list<MemberStatus> members     // in the order of their slices
  3: list<Event> events             // the last 200 after `events_after`, oldest first
  4: optional list<GroupChange> changes  // the latest 20 of the group, oldest first; only with formed_group
}

/** The policy by which batches are split from now on. */
struct Balancing {
  1: string policy                  // as in `evenpace manager --policy`
  2: optional string predictor      // left out: the present one
  3: optional double tolerance      // at least 0 and below 1; left out: the present one
}

/** The way in which the whole batch's size is chosen from now on; what is left out is as it was. */
struct Sizing {
  1: string sizer                   // as in `evenpace manager --sizer`
  2: optional i64 least             // samples; bounds of what it may choose, of which both or none are given
  3: optional i64 most
  4: optional double promise        // the share of goodput that it must be sure to gain, 0 to 1
  5: optional double similarity     // the threshold of similarity, above 0 and below 1
}

/** Another number of workers. Those that are too many are drained, all at once; more are awaited, and may join. */
struct Resizing {
  1: i64 workers                    // that the job is to have, those that are leaving left out: 1 to the data set's size
  2: optional list<string> drain    // the workers that leave first, no more than are too many. Left out, or where they are
                                    // fewer: silent ones, then unmeasured ones, then the slowest
}

/** A change of a running job: exactly one of the fields 2, 3, 5, 6, 7, 8, 9 and 10 is given. */
struct ControlRequest {
  1: string job
  2: optional Balancing balancing
  3: optional i64 total_batch_size  // samples, 1 to the data set's size; with --scale-batch, of `workers` members
  4: optional string worker         // the worker that field 5, 6 or 8 is for
  5: optional Bounds bounds
  6: optional bool drain            // release the worker once it has finished its assignments; only true
  7: optional bool paused           // whether the job is to be paused, so that nothing more is planned
  8: optional bool gone             // take the worker out now, since its machine was given up; only true
  9: optional Sizing sizing
 10: optional Resizing resizing     // not with fixed_group, whose workers cannot leave or join
 11: optional bool keep             // with `paused` true: have the members' state written down before; only with
                                    // formed_group
}

struct ControlReply {
  1: string said                    // the change that was made, in words
}

service BatchSizeManager {
  /** Authenticate the connection: its first call, where a service requires tokens; see AuthenticateRequest. */
  common.AuthenticateReply authenticate(1: common.AuthenticateRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  AssignmentReply join(1: JoinRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised, 5: common.NotYet not_yet)

  /**
   * Begin a job that resumes from a checkpoint, with its learned state of up to 48 MiB; answered at once, and to be
   * followed by join. If there is such a job already, the learned state has no effect. Or, with `run` and without
   * learned state, become a member again.
   */
  ResumeReply resume(1: JoinRequest request, 2: binary learned)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  AssignmentReply report(1: ReportRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised, 5: common.NotYet not_yet)

  /** Return the learned state of policy and predictors, to be saved beside the parameters. */
  CheckpointReply checkpoint(1: CheckpointRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  /**
   * Show that this worker is alive, between other calls. If a worker is silent for long while others wait, its part
   * of the iteration is assigned to them; it stays a member, and continues when it is heard of again.
   */
  HeartbeatReply heartbeat(1: HeartbeatRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  /**
   * Begin another attempt, since the shards have lost state that this one relies on. May be repeated, by all members.
   * Each then calls `fence` with the new attempt at every shard, and `rewind` here with the iteration that all of
   * them can go on from: their present one, if it is the same for all, or the latest of which all have a checkpoint;
   * and `rewind` of every shard with the iteration that the answer begins with. With fixed_group, the job fails. With
   * formed_group, this is for a member that cannot form or use the group of its attempt; `rewind` follows at once.
   */
  RecoverReply recover(1: RecoverRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  /**
   * Enter the new attempt, and get its first assignment; the first member to call decides where it begins.
   *
   * With formed_group, all members have to call, and none is answered before; but those that are silent, or do not call
   * in time, are not waited for. Then the newest state decides: the largest of (formed, iteration, formed_by), compared
   * in that order. The job goes on at that iteration, and members that have not got these three take the state of the
   * first that has. In a new job, in which no member has any state, all take that of rank 0; later, the job fails
   * then, to be started again from a checkpoint. The call may be repeated, as where a connection was lost.
   */
  AssignmentReply rewind(1: RewindRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised, 5: common.NotYet not_yet)

  LeaveReply leave(1: LeaveRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  /**
   * Return records of a job's iterations, also of one that has ended, as far as they are kept. To have all, ask again
   * from the last one's successor until there are none.
   */
  History history(1: HistoryRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  /** List jobs. */
  JobsReply jobs(1: JobsRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  /** Return a job's state, its members, and its latest events. */
  StatusReply status(1: StatusRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)

  /**
   * Change a running job, from the first iteration on that is not planned; no iteration is lost. Every client that
   * may join a job may change it. The change survives a restart of the manager, if that keeps its state.
   */
  ControlReply control(1: ControlRequest request)
    throws (1: common.InvalidRequest invalid, 2: common.NotMember not_member, 3: common.Unavailable unavailable,
            4: common.Unauthorised unauthorised)
}

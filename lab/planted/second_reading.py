"""The findings of a second close reading, with small experiments."""

from collections.abc import Mapping

from lab.planted.finding import Change, Planted

PLANTED = (
    Planted(
        "Where their parts are equally large, shards",
        (
            Change(
                "ps/shard_job.py",
                "if self.part and part and self.part != part:",
                "if False and self.part and part and self.part != part:",
            ),
        ),
        "tests/worker/test_shards_named.py -k 'order or twice'",
    ),
    Planted(
        "Two workers, each with a single shard of its own,",
        (
            Change(
                "batchsize_manager/job/attempts.py",
                "if report.shards is None:\n            return False",
                "return False",
            ),
        ),
        "tests/batchsize_manager/job/test_shards.py",
    ),
    Planted(
        'After "can\'t start new thread", a shard never',
        (Change("ps/checkpoint_store.py", "        executor.submit(lambda: None)\n", "        pass\n"),),
        "tests/ps/test_ps_checkpoints.py -k whose_thread",
    ),
    Planted(
        "A `StreamLoader` ends with `KeyError` after",
        (
            Change(
                "worker/data/sample_stream.py",
                "max(self._recent_samples, recent)",
                "self._recent_samples or recent",
            ),
        ),
        "tests/worker/data/test_sample_stream.py -k 'grows or any_slice'",
    ),
    Planted(
        "A worker whose machine was suspended while it",
        (Change("worker/shard_clients.py", "return min(max(held), took)", "return max(held)"),),
        "tests/worker/test_stopwatch.py -k suspended",
    ),
    Planted(
        "A flipped bit in a live shard's newest checkpoint,",
        (Change("ps/checkpoint_store.py", "            self.versions = tuple(others)\n", ""),),
        "tests/ps/test_ps_checkpoints.py -k torn_checkpoint",
    ),
    Planted(
        "\"The parameter server's shards have no version",
        (
            Change(
                "ps/checkpoint_store.py",
                " if self._tried_by_all is None or v <= self._tried_by_all}",
                "}",
            ),
        ),
        "tests/worker/test_common_checkpoints.py -k always",
    ),
    Planted(
        "A job ends with its checkpoints intact after too",
        (
            Change(
                "ps/checkpoint_store.py",
                "if not damaged and not any(self._is_whole(other) for other in others):",
                "if False:",
            ),
        ),
        "tests/ps/test_ps_checkpoints.py -k has_not_lost",
    ),
    Planted(
        "A test in which `evenpace lab chaos` is interrupted",
        (
            Change(
                "tests/zygote.py",
                "    tempfile.tempdir = None  # it was chosen by the variables of the zygote\n",
                "",
            ),
        ),
        "tests/test_zygote.py -k temporary",
    ),
    Planted(
        "`evenpace lab chaos --faults disk,clock` without",
        (
            Change(
                "lab/chaos/chaos_cluster.py",
                "            self._ending.callback(disks.unmount, self.disks[name])\n",
                "",
            ),
        ),
        "tests/lab/chaos/test_chaos_faults.py -k cannot_begin",
    ),
    Planted(
        'A worker ends with "attempt 2: the job is in',
        (
            Change(
                "batchsize_manager/job/job.py",
                "        self.attempts.catch_up(member, attempt)\n        if attempt >",
                "        if attempt >",
            ),
        ),
        "tests/batchsize_manager/job/test_recovery.py -k not_kept",
    ),
    Planted(
        "A worker whose connection breaks while its token's",
        (
            Change(
                "rpc/credentials.py",
                "return self._token_file.current() if",
                "return _read_token(self.token) if",
            ),
        ),
        "tests/rpc/test_security_tokens.py -k being_replaced",
    ),
    Planted(
        "Samples are in two iterations, or in none, without",
        (
            Change(
                "batchsize_manager/job/job.py",
                "                self.planner.batches.go_on(iteration, *place)\n",
                "                pass\n",
            ),
        ),
        "tests/batchsize_manager/job/test_machine.py -k 'change and lost'",
    ),
    Planted(
        "A worker that joined while the manager's disk",
        (
            Change(
                "batchsize_manager/job/job.py",
                "attempt=-1 if again else self.attempts.number",
                "attempt=self.attempts.number",
            ),
        ),
        "tests/batchsize_manager/job/test_return.py -k not_known",
    ),
    Planted(
        "A script ends at once and has trained nothing: it",
        (
            Change(
                "batchsize_manager/service.py",
                "managed.once_kept(\n            lambda: call.reply(\n                _wire.LeaveReply(",
                "(lambda now: now())(\n            lambda: call.reply(\n                _wire.LeaveReply(",
            ),
        ),
        "tests/worker/test_membership.py -k an_end",
    ),
    Planted(
        "A script with two optimisers trains neither model:",
        (
            Change(
                "worker/exchanges/parameter_server.py",
                "if self._prepared is not None:\n            raise",
                "if False:\n            raise",
            ),
        ),
        "tests/worker/torch/test_adapter.py -k second",
    ),
    Planted(
        "With two models balanced by one loader, in",
        (
            Change(
                "worker/torch/ddp.py",
                "if session.training.micro_batch is not None and",
                "if False and",
            ),
        ),
        "tests/worker/torch/test_micro_batches.py -k two_models",
    ),
    Planted(
        "A complex parameter loses its imaginary part, and",
        (
            Change(
                "worker/tensor_types.py",
                'if "float" not in tensor.dtype:',
                "if False:",
            ),
            Change(
                "worker/tensor_types.py",
                'if any(tensor.dtype == "float64"',
                'if all(tensor.dtype == "float64"',
            ),
        ),
        "tests/worker/torch/test_adapter.py tests/worker/torch/test_contract.py -k 'complex or keep'",
    ),
    Planted(
        "`nn.Embedding(sparse=True)` ends with",
        (
            Change(
                "worker/torch/micro_batches.py",
                "if parameter.grad is not None and parameter.grad.layout is not torch.strided:",
                "if False:",
            ),
        ),
        "tests/worker/torch/test_adapter.py tests/worker/torch/test_streams.py -k sparse_gradients",
    ),
    Planted(
        "Samples are never trained on, and a gradient",
        (
            Change(
                "worker/session.py",
                "if not self.is_begun:",
                "if False:",
            ),
        ),
        "tests/worker/test_session_rewind.py -k own",
    ),
    Planted(
        "Parameters that a script unfreezes or adds after",
        (
            Change(
                "worker/torch/optimizer.py",
                "        self._check_trained(optimizer)\n",
                "",
            ),
            Change(
                "worker/torch/optimizer.py",
                "        self._warn_of_changes()\n",
                "",
            ),
        ),
        "tests/worker/torch/test_adapter.py -k 'fixed or warned'",
    ),
    Planted(
        "A Keras model that is compiled again after",
        (
            Change(
                "worker/keras/model_hooks.py",
                "if model.train_function is None:  # it was compiled again",
                "if False:",
            ),
        ),
        "tests/scripts/keras_cases.py -k compiled_again",
    ),
    Planted(
        "Two calls by a member of one job,",
        (
            Change(
                "batchsize_manager/job/job.py",
                "if not self.members.started and not self.attempts.recovering:",
                "if False:",
            ),
        ),
        "tests/batchsize_manager/test_manager_restart.py -k cannot_go_back",
    ),
    Planted(
        "Nobody notices that a manager does not write",
        (
            Change(
                "batchsize_manager/storage/state_writer.py",
                "self._behind = self.has_ended = True",
                "self._behind = False",
            ),
        ),
        "tests/evenpace/test_health.py -k any_more",
    ),
    Planted(
        "One damaged value in a manager's state,",
        (
            Change(
                "batchsize_manager/storage/state_reader.py",
                "except _DAMAGE as error:\n                run, job",
                "except ZeroDivisionError as error:\n                run, job",
            ),
        ),
        "tests/batchsize_manager/storage/test_damaged_rows.py",
    ),
    Planted(
        "A flipped bit in what a manager has saved of a job",
        (
            Change(
                "batchsize_manager/storage/state_copies.py",
                "sound = there.get(number, copy)",
                "sound = there.get(number)",
            ),
        ),
        "tests/batchsize_manager/storage/test_damaged_rows.py -k flipped_bit",
    ),
    Planted(
        "`lab.observer.Observer` keeps the records of",
        (
            Change(
                "lab/observer.py",
                "if records and (records[0].iteration, records[0].attempt) == "
                "(last.iteration, last.attempt):\n                del records[0]",
                "if True:\n                records = records[1:]",
            ),
        ),
        "tests/evenpace/overview/test_overview_rewinds.py",
    ),
    Planted(
        "A new job has the records of another one, whose",
        (
            Change(
                "batchsize_manager/storage/state_file.py",
                "self._delete_rest(self._id(run))  # of an earlier",
                "pass  # of an earlier",
            ),
        ),
        "tests/batchsize_manager/storage/test_damaged_rows.py -k nothing_of_one",
    ),
    Planted(
        "In micro-batches, with `--exact` too, runs differ",
        (Change("worker/data/sliced_batch.py", "        self._seed(Draws.BEFORE)\n", ""),),
        "tests/worker/torch/test_micro_batches.py -k one_process",
    ),
    Planted(
        "A script's random numbers differ after a connection",
        (Change("rpc/client.py", "_JITTER = random.SystemRandom()", "_JITTER = random"),),
        "tests/rpc/test_wire_client.py -k generator",
    ),
    Planted(
        "A step lacks samples, or a job stands still: a piece",
        (
            Change(
                "batchsize_manager/job/progress.py",
                "if (worker, p) in self._given and start",
                "if any(p == given for _, given in self._given) and start",
            ),
        ),
        "tests/batchsize_manager/job/test_machine.py -k failed_once",
    ),
    Planted(
        "After a manager was killed while its disk was full,",
        (
            Change(
                "batchsize_manager/job/attempts.py",
                "attempt >= self.number and attempt > member.announced",
                "attempt > self.number",
            ),
        ),
        "tests/batchsize_manager/job/test_recovery.py -k shares",
    ),
)

UNPLANTED: Mapping[str, str] = {
    "The test of a competitor's share fails now and": "It was the test's own, which no other test looks at.",
}

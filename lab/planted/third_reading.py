"""The findings of a third close reading, and of scripts in the shape of public reports."""

from collections.abc import Mapping

from lab.planted.finding import Change, Planted

PLANTED = (
    Planted(
        "`evenpace ps --state DIR` deletes folders of others",
        (
            Change(
                "ps/checkpoint_store.py",
                "if not all(_JOB_FILE.fullmatch(",
                "if False and not all(_JOB_FILE.fullmatch(",
            ),
            Change(
                "batchsize_manager/learning/saved_models.py", 'glob(f"*{_OWN_SUFFIX}")', 'glob(f"*{_SUFFIX}")'
            ),
        ),
        "tests/ps/test_ps_checkpoints.py tests/batchsize_manager/learning/test_saved_models.py "
        "-k 'of_others or last_jobs'",
    ),
    Planted(
        "After an allocation has failed at a shard,",
        (
            Change(
                "ps/service.py",
                "            lost = self._jobs.lose(job, error)\n",
                "            raise\n            lost = self._jobs.lose(job, error)\n",
            ),
        ),
        "tests/ps/test_failures.py -k 'step_fails or fails_again or under_way'",
    ),
    Planted(
        "What a shard had half done when its memory ran out",
        (
            Change(
                "ps/shard.py",
                "        squares = self._squares(contribution, begin, piece)\n        is_finite",
                "        contribution.done += len(piece)\n"
                "        squares = self._squares(contribution, begin, piece)\n        is_finite",
            ),
            Change(
                "ps/shard.py",
                "        contribution.done += len(piece)\n        contribution.squares",
                "        contribution.squares",
            ),
        ),
        "tests/ps/test_failures.py -k 'piece or slot or refused'",
    ),
    Planted(
        "A shard that ends writes no checkpoints of its other jobs,",
        (Change("ps/jobs.py", "                self.lose(job, error)\n", "                raise\n"),),
        "tests/ps/test_failures.py -k other_job",
    ),
    Planted(
        "A worker that reads its parameters slowly gets",
        (Change("ps/parameters.py", "            self.ahead.leave_memory()\n", "            pass\n"),),
        "tests/ps/test_pull_ahead.py -k slowly",
    ),
    Planted(
        "With Adam a shard takes 7 times the memory of",
        (
            Change("ps/parameters.py", "version * (1 + self.steps_ahead))", "version)"),
            Change(
                "ps/jobs.py",
                "self._config.deterministic, not self._config.whole_steps)",
                "self._config.deterministic)",
            ),
        ),
        "tests/ps/test_step_ahead.py tests/ps/test_pull_ahead.py -k 'memory_it_takes or whole_steps'",
    ),
    Planted(
        "A worker that clips gradients dies in its first",
        (Change("worker/shard_clients.py", "request.early = True", "request.early = None"),),
        "tests/worker/test_shard_clients.py -k early",
    ),
    Planted(
        "A worker that was held up while its job recovered",
        (Change("worker/job_recovery.py", "differed > _TRIES:", "time.monotonic() - begun > 10.0:"),),
        "tests/worker/test_recovery_decisions.py -k held_up",
    ),
    Planted(
        "A stock client that connects early, and calls",
        (Change("idl/common.thrift", "within 10 seconds of connecting is", "for long is"),),
        "tests/rpc/test_wire_peers.py -k contract",
    ),
    Planted(
        "Ctrl-C is ignored for ten minutes, and a recovery",
        (Change("rpc/client.py", "        if not wanted():", "        if False:"),),
        "tests/worker/test_shard_clients.py -k 'is_away and refused'",
    ),
    Planted(
        "Ctrl-C is ignored for up to half an hour while",
        (
            Change(
                "worker/torch/formed_group.py",
                'self._apart(attempt, _exchanged, "member", own, store, seat, _WAIT_SECONDS)',
                '_exchanged("member", own, store, seat, _WAIT_SECONDS)',
            ),
        ),
        "tests/worker/torch/test_formed_groups.py -k can_be_interrupted",
    ),
    Planted(
        "A script's connection to a database or a store",
        (
            Change(
                "worker/torch/formed_group.py",
                "for descriptor, both in new.items() if mark(*reversed(both)) in theirs}",
                "for descriptor, both in new.items()}",
            ),
        ),
        "tests/worker/torch/test_formed_groups.py -k left_alone",
    ),
    Planted(
        "Whoever reaches the port of a process group's store",
        (
            Change(
                "worker/torch/outlines.py",
                "_filled(json.loads(text), flat)",
                "__import__('pickle').loads(text)",
            ),
            Change("worker/torch/formed_group.py", "listener.bind(at)", 'listener.bind(("", 0))'),
        ),
        "tests/worker/torch/test_training_state.py tests/worker/torch/test_formed_groups.py "
        "-k 'no_outline or members_use_alone'",
    ),
    Planted(
        "A pull ahead over a slow link is cut off after 20",
        (
            Change("rpc/peer.py", "self._given - unsent > self._taken:", "-unsent > self._taken:"),
            Change("rpc/peer.py", "max(self._taken, self._given - unsent)", "-unsent"),
        ),
        "tests/rpc/test_wire_peers.py -k more_slowly",
    ),
    Planted(
        "A job on a Ray cluster waits for good after a",
        (
            Change(
                "scheduler/ray/process_actor.py",
                "except Exception as error:",
                "except EvenpaceError as error:",
            ),
        ),
        "tests/scheduler/ray/test_process_actor.py",
    ),
    Planted(
        "Where half of 100 workers by all-reduce are cut off",
        (
            Change(
                "worker/torch/reaching.py",
                "        tries[name] = in_daemon(",
                "        wait(tries.values())\n        tries[name] = in_daemon(",
            ),
        ),
        "tests/worker/torch/test_formed_groups.py -k all_at_once",
    ),
    Planted(
        "Without a seed, frozen layers, buffers and teachers",
        (
            Change(
                "worker/exchanges/parameter_server.py",
                "self._lacks_untrained = untrained is not None and not is_first",
                "self._lacks_untrained = False",
            ),
        ),
        "tests/worker/torch/test_untrained.py -k first_workers",
    ),
    Planted(
        "A buffer that each forward pass moves by the batch,",
        (
            Change(
                "worker/torch/optimizer.py",
                "        session.before_batch.append(self._fixed_samples.note)\n",
                "",
            ),
        ),
        "tests/worker/torch/test_untrained.py -k move",
    ),
    Planted(
        "`p.data.clamp_()` after a step is lost",
        (
            Change(
                "worker/torch/optimizer.py", "        return self._samples.changed()", "        return None"
            ),
        ),
        "tests/worker/torch/test_untrained.py -k clamp",
    ),
    Planted(
        "`random_split` without a seed, or labels numbered",
        (
            Change(
                "batchsize_manager/service.py",
                "elif not managed.job.spec.has_samples_of(spec):",
                "elif False:",
            ),
        ),
        "tests/worker/data/test_fingerprints.py -k refused",
    ),
    Planted(
        "A `collate_fn` that leaves out damaged samples",
        (
            Change(
                "worker/data/loader.py",
                "                self._check_size(batch, len(part.indices))\n            yield",
                "            yield",
            ),
        ),
        "tests/worker/data/test_batch_sizes.py",
    ),
    Planted(
        "A Keras model's frozen layers, and the means",
        (Change("worker/keras/model_hooks.py", "model.weights if model is not None else ()", "()"),),
        "tests/scripts/keras_cases.py -k joins",
    ),
    Planted(
        "Weights that a Keras callback sets within",
        (
            Change(
                "worker/keras/optimizer.py",
                "        self._session.before_batch.append(lambda: self._warn_of_changes(self._noted))\n",
                "",
            ),
        ),
        "tests/scripts/keras_cases.py -k set_after",
    ),
    Planted(
        "`Embedding(mask_zero=True)` with an output for",
        (
            Change(
                "worker/keras/model_hooks.py",
                "    model.compute_loss = _warning_of_masks(model.compute_loss, loader)\n",
                "",
            ),
        ),
        "tests/scripts/keras_cases.py -k mask",
    ),
    Planted(
        "Hooks of a PyTorch optimiser are left out",
        (
            Change(
                "worker/torch/optimizer.py",
                "    @torch.optim.Optimizer.profile_hook_step  # which calls the optimiser's hooks\n",
                "",
            ),
        ),
        "tests/worker/torch/test_adapter.py -k hooks",
    ),
    Planted(
        "Workers that stop by a loss of their own end",
        (
            Change(
                "batchsize_manager/job/job.py",
                "            self._first_to_leave = min(self._first_to_leave or left, left)\n",
                "            self._first_to_leave = None\n",
            ),
        ),
        "tests/batchsize_manager/job/test_effects.py -k different_iterations",
    ),
    Planted(
        "The tutorial's script ends with a `NameError`",
        (
            Change(
                "docs/tutorial.md",
                "distribute(optimizer, loader, model)\n\nfor epoch in loader.epochs(1000):",
                "distribute(optimizer, loader, model)\n\nfor epoch in range(1000):",
            ),
        ),
        "tests/docs/test_examples.py -k train.py-train.py",
    ),
    Planted(
        "A worker that is drained before its first batch ends",
        (
            Change(
                "evenpace/cli/services.py",
                '        log.warning("%s; its script ends here", error)\n',
                "        raise\n",
            ),
        ),
        "tests/worker/data/test_epochs.py -k before_its_first",
    ),
    Planted(
        "A worker that evaluates or saves for longer than",
        (
            Change(
                "batchsize_manager/job/deadlines.py",
                "return member.is_between and now",
                "return False and now",
            ),
        ),
        "tests/batchsize_manager/job/test_job.py tests/batchsize_manager/job/test_rendezvous.py "
        "-k something_else",
    ),
    Planted(
        "Workers end with a time-out where another's script",
        (
            Change(
                "worker/session.py",
                "        self.meter.resume()\n        self._membership.is_between = True\n",
                "        self.meter.resume()\n",
            ),
        ),
        "tests/worker/test_heartbeat.py -k something_else",
    ),
    Planted(
        "What a script changes in its data set between epochs",
        (
            Change(
                "worker/torch/loader.py",
                "persistent_workers: bool = False,",
                "persistent_workers: bool = True,",
            ),
        ),
        "tests/worker/torch/test_adapter.py -k scripts_data_set",
    ),
    Planted(
        "PyTorch's own defaults, passed on by hand,",
        (
            Change("worker/torch/loader.py", "collate_fn or torch_data.default_collate", "collate_fn"),
            Change("worker/torch/loader.py", "shuffle=bool(shuffle)", "shuffle=shuffle"),
        ),
        "tests/worker/torch/test_adapter.py -k own_defaults",
    ),
    Planted(
        "Lazy layers end `distribute` with a traceback",
        (
            Change(
                "worker/torch/optimizer.py",
                "if any(map(torch.nn.parameter.is_lazy,",
                "if False and any(map(torch.nn.parameter.is_lazy,",
            ),
        ),
        "tests/worker/torch/test_adapter.py -k 'lazy or one_batch_ahead'",
    ),
    Planted(
        "With control groups of version 2, which nearly all",
        (Change("worker/resources/cpu_limits.py", "if cgroups.holds_processes(parent):", "if False:"),),
        "tests/worker/resources/test_cpu_limits.py -k no_parents",
    ),
    Planted(
        "Ctrl-C while commands are imported ends with",
        (Change("evenpace/__main__.py", "except KeyboardInterrupt:", "except ZeroDivisionError:"),),
        "tests/evenpace/test_cli.py -k interruption",
    ),
    Planted(
        "Words on a page do not fit its figures:",
        (Change("evenpace/overview/stragglers.py", "if ratio >= _FASTER:", "if False:"),),
        "tests/evenpace/overview/test_overview_view.py -k words_fit",
    ),
    Planted(
        "A report's table of workers is cut",
        (Change("evenpace/reports/run.html.j2", 'class="scroll out"', 'class="scroll"'),),
        "tests/evenpace/reports/test_report_browser.py -k runs_page",
    ),
    Planted(
        "A worker that was frozen or cut off while the others",
        (
            Change("batchsize_manager/service.py", "FINISHED if is_well else None", "None"),
            Change("batchsize_manager/job/job.py", "heard_at < self._left_well_at", "heard_at < -inf"),
        ),
        "tests/worker/test_recovery.py tests/batchsize_manager/job/test_effects.py "
        "-k 'was_away or stay_frozen and effects'",
    ),
    Planted(
        "`optimizer.state_dict()` within an epoch ends a worker",
        (
            Change(
                "worker/exchanges/parameter_server.py",
                "if version >= 0 and not assignment.count:",
                "if False and not assignment.count:",
            ),
        ),
        "tests/worker/data/test_epochs.py -k optimisers_state",
    ),
    Planted(
        "In a job by all-reduce, the record of a step",
        (
            Change(
                "batchsize_manager/job/iterations.py",
                "if not self.reported_by_one or sum(",
                "if True or sum(",
            ),
        ),
        "tests/batchsize_manager/job/test_rendezvous.py -k recorded",
    ),
    Planted(
        "A script that calls `evenpace.connect` and is drained",
        (Change("evenpace/context.py", "    _end_well_once_released()\n    return", "    return"),),
        "tests/evenpace/test_endings.py -k by_itself",
    ),
    Planted(
        "BatchNorm ends a worker whose part, or micro-batch,",
        (
            Change(
                "worker/torch/micro_batches.py",
                "        refuse_single_values(model, session.training.micro_batch)\n",
                "",
            ),
        ),
        "tests/worker/torch/test_untrained.py -k one_value",
    ),
    Planted(
        "Where a disk is full, reports, models, checkpoints",
        (
            Change(
                "rpc/writing.py",
                "raise OSError(error.errno, error.strerror, str(path)) from error",
                "raise",
            ),
            Change("rpc/logs.py", "if isinstance(error, OSError):", "if False:"),
        ),
        "tests/rpc/test_writing.py tests/rpc/test_logs.py tests/ps/test_ps_checkpoints.py "
        "-k 'names_the_file or full_disk'",
    ),
    Planted(
        "With `model.join()` around the loop,",
        (
            Change(
                "worker/torch/ddp.py",
                "    model.join = _join_nobody  # type: ignore[method-assign]\n",
                "",
            ),
        ),
        "tests/worker/torch/test_formed_groups.py -k rmsprop",
    ),
    Planted(
        "`fit(loader, validation_split=…)`, and a JAX",
        (
            Change("worker/keras/model_hooks.py", 'if options.get("validation_split"):', "if False:"),
            Change(
                "worker/jax/gradient.py",
                "            _check_takes(loss_fn, params, piece, *rest, **key)\n",
                "",
            ),
        ),
        "tests/worker/jax/test_gradient.py tests/scripts/keras_cases.py -k 'mistakes or loader_alone'",
    ),
    Planted(
        "`train_on_batch` of a distributed Keras model,",
        (
            Change(
                "worker/keras/model_hooks.py",
                "for batch in map(_without_none, iterator):",
                "for batch in iterator:",
            ),
        ),
        "tests/scripts/keras_cases.py -k train_on_batch",
    ),
    Planted(
        "`balance` refuses RMSprop and others, and advises",
        (
            Change(
                "worker/torch/preconditioner.py",
                '        log.info(\n            "optimizer %s:',
                '        raise ValueError(\n            "optimizer %s:',
            ),
            Change(
                "worker/torch/formed_group.py",
                "            if group.commit() is not None:\n                raise _NoStepError",
                "            if False:\n                raise _NoStepError",
            ),
        ),
        "tests/worker/torch/test_formed_groups.py -k 'rmsprop or (killed_within and closure)'",
    ),
)

UNPLANTED: Mapping[str, str] = {}

"""The maker of policies, which sends their fits to the trainer's process, and their models to files."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from batchsize_manager.balancing import Balancing
from batchsize_manager.counters import LearningTally
from batchsize_manager.job.job import Job
from batchsize_manager.learning.saved_models import models_file, save_models, unpack_models
from batchsize_manager.learning.trainer import Trainer
from batchsize_manager.policies import Policy, PolicyOptions, make_job_policy
from batchsize_manager.policies.metered_policy import MeteredPolicy
from idl.errors import InvalidRequestError
from predictors import Models, Weights, missing

log = logging.getLogger(__name__)


class Learning:
    """The policies, fits and fitted models of one manager's jobs.

    Args:
        policy: A name in `batchsize_manager.policies.POLICIES`.
        folder: The folder in which each job's fitted models are kept; None: they are not kept.
    """

    def __init__(self, policy: str, options: PolicyOptions, folder: Path | None) -> None:
        # The way in which batches are split where a job has no other.
        self.balancing = Balancing(policy, options.predictor, options.tolerance)
        if self.balancing.uses_predictor and options.predictor == "auto" and (lacks := missing()):
            log.warning(
                "predictor auto: the mean of ema, memoryless and arx is used, without narx, since %s is not "
                "installed: pip install 'evenpace[manager]'",
                lacks,
            )
        self._options = options
        self._folder = folder
        self.tally = LearningTally()  # counts of what policies and fits have done
        self._trainer = Trainer(self.tally)
        self._saving: set[asyncio.Future[None]] = set()  # the loop itself would forget them

    def make_policy(self, learned: bytes, balancing: Balancing | None = None) -> Policy:
        """Make a policy for a new job, with the models of an earlier run of the job.

        Args:
            learned: Packed models, from a checkpoint; may be empty.
            balancing: The job's own balancing; None: the manager's.

        Raises:
            InvalidRequestError: `learned` holds no models, or none that the policy can use.
        """
        try:
            models = unpack_models(learned) if learned else self._options.models
            return self._make(balancing or self.balancing, models)
        except ValueError as error:
            raise InvalidRequestError(f"learned: {error}") from error

    def make_successor(self, balancing: Balancing, models: Models) -> Policy:
        """Make another policy for a running job, which starts from the models learned so far."""
        return self._make(balancing, {**self._options.models, **models})

    def _make(self, balancing: Balancing, models: Models) -> Policy:
        options = replace(self._options, predictor=balancing.predictor, tolerance=balancing.tolerance)
        return MeteredPolicy(make_job_policy(balancing.policy, options, models), self.tally)

    def train(self, job: Job, learned: Callable[[], None], name: str) -> None:
        """Run the fit that a job's policy has due, if any.

        Args:
            learned: Function that is called after a successful fit.
        """
        policy = job.planner.policy

        def take(weights: Weights | None) -> None:
            if job.planner.take_fit(policy, weights) and weights is not None:
                learned()

        fit = policy.due_fit()
        if fit is not None:
            self._trainer.submit(fit, take, {"job": name, "iteration": job.iterations.first_open})

    def save(self, name: str, job: Job) -> None:
        """Write a job's models into its file, if models are to be kept."""
        models = job.planner.policy.models() if self._folder is not None else {}
        if self._folder is None or not models:
            return
        path = models_file(self._folder, name)
        saving = asyncio.get_running_loop().run_in_executor(None, _save, path, models, name)
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)

    def close(self) -> None:
        """Stop at once; a running fit is lost."""
        self._trainer.close()


def _save(path: Path, models: Models, job: str) -> None:
    try:
        save_models(path, models)
    except OSError as error:
        log.warning("the fitted models cannot be kept: %s", error, extra={"job": job})

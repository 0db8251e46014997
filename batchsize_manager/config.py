"""The configuration of a BatchSizeManager: a value that checks itself."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from batchsize_manager.job.config import JobConfig
from batchsize_manager.policies import POLICIES, PolicyOptions, make_policy
from batchsize_manager.storage.retention import Retention
from idl.settings import Setting, check_settings

TOLERANCE = 0.02
"""The tolerance of policies, unless another is configured; that of the paper is 0."""


@dataclass(frozen=True)
class ManagerConfig:
    """The policy of a manager, the number of jobs that it takes, and the state that it keeps of them.

    Raises:
        ValueError: A value is not allowed.
    """

    # A name in `batchsize_manager.policies.POLICIES`.
    policy: Annotated[
        str,
        Setting(
            "How batches are split: the same for all (even), by each worker's predicted speed (proportional, "
            "for CPUs), by moving samples from the slowest to the fastest (leader_straggler), by how its "
            "time grows with the batch (learned, for GPUs), or by that and the times of transfers that "
            "overlap with the backward pass (overlap).",
            choices=POLICIES,
        ),
    ] = "proportional"
    # The policy's options.
    options: PolicyOptions = field(default_factory=lambda: PolicyOptions(tolerance=TOLERANCE))
    job: JobConfig = field(default_factory=JobConfig)  # the configuration of its jobs
    models: Annotated[
        Path | None,
        Setting("Keep the fitted models of predictors in this folder, a file for each job.", folder=True),
    ] = None
    jobs: Annotated[int, Setting("Most jobs at once; more are refused.", name="max-jobs", least=1)] = 100
    members: Annotated[
        int, Setting("Most workers of a job; more are refused.", name="max-members", least=1)
    ] = 5000
    state: Annotated[
        Path | None,
        Setting(
            "Keep jobs in this folder: a manager that is restarted with it goes on with them.",
            folder=True,
        ),
    ] = None
    retention: Retention = field(default_factory=Retention)  # limits of what is kept of jobs

    def __post_init__(self) -> None:
        check_settings(self)
        make_policy(self.policy, self.options)  # raises ValueError

"""Jobs on a Ray cluster from Python: `Trainer`, in the names and shapes of Ray Train."""

from evenpace.ray.trainer import (
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    Trainer,
    TrainingFailedError,
)
from scheduler.ray.training import Checkpoint, get_checkpoint, report

__all__ = [
    "Checkpoint",
    "FailureConfig",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "Trainer",
    "TrainingFailedError",
    "get_checkpoint",
    "report",
]

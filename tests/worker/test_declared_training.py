"""What a job trains on and how far it is, without a manager: its data, checkpoints, and learning rates."""

import pytest

from idl.errors import InvalidRequestError
from idl.plan import Assignment, JobSpec, Resume, Scaling
from worker.config import JobCheckpoint
from worker.training import Training

SPEC = JobSpec(100, 10, micro_batch=5)
NOW = Assignment(7, 1, 24, 6, 20, batch_start=20, scaling=Scaling(20, 1.5, 8.5))


class Place:
    """A worker's present assignment, which a test sets, and the manager's answer to a checkpoint."""

    def __init__(self, spec=SPEC, size=20):
        self.now = None
        self.training = Training(lambda: self.now, lambda: (b"learned", size))
        if spec is not None:
            self.training.declare(spec)


def test_a_checkpoint_says_where_the_present_batch_begins():
    """With the size of whole batches, which may have changed; it gives the point to resume from."""
    place = Place()
    place.now = NOW
    saved = place.training.checkpoint()
    assert saved == JobCheckpoint(7, b"learned", SPEC, (1, 20), 20, 8.5)
    assert saved.point == Resume(7, (1, 20), 20, 8.5)


def test_a_checkpoint_of_a_job_that_never_changed_its_batch():
    """Size and progress are the script's; a place that the manager left out is left out."""
    place = Place(size=None)
    place.now = Assignment(7, 0, 70, 5, 10)
    assert place.training.checkpoint() == JobCheckpoint(7, b"learned", SPEC, None, 10, None)


def test_a_job_resumes_before_it_begins_and_from_its_own_checkpoint():
    """Then its first iteration is the checkpoint's."""
    place, saved = Place(), JobCheckpoint(7, b"", SPEC)
    with pytest.raises(InvalidRequestError, match=r"is of .*dataset_size=50.*, but this is .*=100"):
        place.training.resume(JobCheckpoint(7, b"", JobSpec(50, 10)))
    assert place.training.first_iteration == 0
    place.training.resume(saved)
    assert (place.training.resumed, place.training.first_iteration) == (saved, 7)
    place.now = NOW
    with pytest.raises(InvalidRequestError, match="must be loaded before the training begins"):
        place.training.resume(saved)


def test_without_a_batch_there_is_nothing_to_scale_or_save():
    """As before the training, and once this worker was released."""
    training = Place().training
    for read in (lambda: training.scaling, lambda: training.lr_scale):
        with pytest.raises(InvalidRequestError, match=r"there is no batch: .*not in a running job"):
            read()
    with pytest.raises(InvalidRequestError, match=r"nothing to save: .*not in a running job"):
        training.checkpoint()

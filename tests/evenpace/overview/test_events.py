"""Events for readers, made of those that a job itself logs."""

from evenpace.overview.events import ShownEvent, condensed
from idl.plan import JobSpec
from tests.batchsize_manager.job.test_batch_sizer import Run

FIRST = "the batch size goes from 10 to 11: the script's size from epoch 1 on"


def resized(epochs):
    """Return the events of a job whose batch has another size in each epoch."""
    run = Run(JobSpec.of(100, {epoch: 10 + epoch for epoch in range(epochs)}))
    while run.batches[-1:] == [] or run.batches[-1][0] < epochs - 1:
        run.go(1)
    return [ShownEvent(float(at), text) for at, text in enumerate(run.job.outbox.events)]


def test_many_changes_of_size_in_a_row_are_one_event():
    """It says from where to where, and why at last; all other events are as they were."""
    events = resized(40)
    others = [event for event in events if "batch size" not in event.text]
    assert len(events) == len(others) + 39
    shown = condensed(events)
    assert shown[:-1] == others
    assert shown[-1].text == (
        "the batch size goes from 10 to 49 in 39 steps; the last one: the script's size from epoch 39 on"
    )
    assert shown[-1].at == events[-1].at


def test_other_events_end_a_row_of_changes():
    """What happened between two rows stays between them."""
    changes = resized(6)[-5:]
    between = ShownEvent(100.0, "worker-1 joined, for iteration 70 on")
    shown = condensed([*changes, between, *changes])
    assert [event.text[:14] for event in shown] == ["the batch size", "worker-1 joine", "the batch size"]

"""A flat array that is sent while it is filled: what may be sent when, and when it counts as sent."""

import numpy as np
import pytest

from idl.errors import RewoundError
from worker.growing_array import GrowingArray


def make(bounds, told):
    """Return an array of these parts, the senders of them, and a function that fills it up to elements."""
    array = np.arange(bounds[-1][1], dtype=np.float64)
    growing = GrowingArray(array, bounds)

    def advance(*ends):
        growing.advance(ends, lambda: told.append(ends))

    return growing, [growing.part(number) for number in range(len(bounds))], advance


def send(part, sent):
    """Send what there is after some bytes; return the bytes sent so far."""
    sent += part.after(sent).nbytes
    part.note_sent(sent)
    return sent


def test_each_bucket_is_sent_by_itself_and_told_of_once_all_parts_have_sent_it():
    """Two are filled before the first is sent: a sender gets the one, then the other."""
    told = []
    growing, (first, second), advance = make([(0, 4), (4, 8)], told)
    advance(1, 6)
    advance(3, 7)
    assert np.frombuffer(second.after(0)).tolist() == [4, 5]
    assert send(first, send(first, 0)) == 3 * 8
    assert told == []
    sent = send(second, 0)
    assert told == [(1, 6)]
    sent = send(second, sent)
    assert told == [(1, 6), (3, 7)]
    growing.complete()
    assert np.frombuffer(second.after(sent)).tolist() == [7]


def test_what_is_sent_again_is_whole_and_not_told_of():
    """As over another connection, which gets all of a part at once."""
    told = []
    growing, (first, second), advance = make([(0, 4), (4, 8)], told)
    advance(2, 6)
    send(first, 0)
    growing.complete()
    assert np.frombuffer(second.whole()).tolist() == [4, 5, 6, 7]
    send(first, 2 * 8)
    assert told == []
    growing.give_up(RewoundError("another attempt", 1))
    for wait in (second.whole, lambda: second.after(0)):
        with pytest.raises(RewoundError):
            wait()

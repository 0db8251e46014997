"""Checks of this machine's clock, on which certificates, tokens and records depend."""

import ctypes
import threading
import time
from collections.abc import Iterator

from evenpace.doctor.findings import Finding, Subject, milliseconds, note, ok, warning

_UNSYNCHRONISED = 0x40  # STA_UNSYNC, of adjtimex(2)
_WATCHED = 1.0  # seconds
_STEP = 0.02  # seconds between two readings
_JUMP = 0.05  # seconds that the wall clock may move against the monotonic one
_HELD_UP = 0.2  # seconds that a reading may be late
_SLEPT = 1.0  # seconds of suspension that are reported


def synchronised(subject: Subject) -> Iterator[Finding]:
    """Check whether the kernel holds the clock to be synchronised."""
    state = _timex()
    if state is None:
        yield note("clock", "the kernel does not say whether it is synchronised")
    elif state.status & _UNSYNCHRONISED:
        yield warning(
            "clock",
            "not synchronised with others'",
            "run an NTP service, such as chrony or systemd-timesyncd: certificates, tokens and logs go by it",
        )
    else:
        yield ok("clock", f"synchronised, to {milliseconds(state.maxerror / 1e6)} at most")
    slept = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    if slept > _SLEPT:
        yield note("clock", f"this machine was suspended for {slept:.0f} s since it started")


def steady(subject: Subject) -> Iterator[Finding]:
    """Read the clocks for a second: check whether the time jumps, and whether processes are held up."""
    jump = late = 0.0
    pause = threading.Event()  # waits by a clock that does not jump
    begun, (least, most) = time.monotonic(), _apart()
    while (before := time.monotonic()) - begun < _WATCHED:
        pause.wait(_STEP)
        late = max(late, time.monotonic() - before - _STEP)
        low, high = _apart()
        jump = max(jump, low - most, least - high)
    if jump > _JUMP:
        yield warning(
            "clock",
            f"it jumped by {milliseconds(jump)} within {_WATCHED:g} s",
            "have one service alone set the clock, and slew it; see whether the hypervisor sets it, too",
        )
    if late > _HELD_UP:
        yield warning(
            "time",
            f"a process that slept was woken {milliseconds(late)} late",
            "the machine is overloaded, or its hypervisor holds it up: see what else runs, and CPU quotas",
        )
    if max(jump / _JUMP, late / _HELD_UP) <= 1:
        yield ok("time", f"goes by evenly: processes are woken {milliseconds(late)} late at most")


def _apart() -> tuple[float, float]:
    """Return bounds, in seconds, of the wall clock's lead over the monotonic one.

    A process may be held up between two readings, which must not be taken for a jump.
    """
    before, wall, after = time.monotonic(), time.time(), time.monotonic()
    return wall - after, wall - before


class _Timex(ctypes.Structure):
    """The beginning of `struct timex` of adjtimex(2), with room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),  # microseconds
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 512),
    )


def _timex() -> _Timex | None:
    """Return the state of the kernel's clock; None where it cannot be read."""
    state = _Timex()
    try:
        result = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state))
    except (OSError, AttributeError):
        return None
    return state if result >= 0 else None

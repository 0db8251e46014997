"""A small process that holds another to a share of CPU by stopping and continuing it, without cgroups.

    python -m worker.resources.duty_cycle PID SHARE [--period SECONDS]

It runs on the standard library alone (Linux): it must keep time while the launcher is busy, and must not
use the CPU time that the limited process has been denied.
"""

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

PERIOD = 0.02
"""Default period in seconds, short against an iteration of training."""

# Checking more often than this costs more than it gains in smoothness.
_SHORTEST_WAIT = 0.002

_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


@dataclass
class Budget:
    """CPU seconds that a process may use before it must be stopped.

    Unused seconds are kept for one period at most; overdrawn ones are paid back in full, so that the mean is
    exact however late the process is checked.
    """

    share: float  # cores that the process may use, in the mean
    period: float  # seconds of income that the budget holds
    balance: float = 0.0  # CPU seconds left; negative when overdrawn

    def settle(self, elapsed: float, used: float) -> None:
        """Account for `elapsed` seconds of wall-clock time and `used` seconds of CPU time."""
        most = self.share * self.period
        self.balance = min(self.balance + self.share * elapsed - used, most)

    def next_look(self, pace: float) -> float:
        """Return seconds until the balance may change its sign, one period at most.

        Args:
            pace: Cores that the process uses while it runs.
        """
        wait = self.balance / pace if self.balance > 0 else -self.balance / self.share
        return min(max(wait, _SHORTEST_WAIT), self.period)


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot: with its pid, its identity.

    Returns:
        `None` if no such process runs; one that has ended but was not waited for counts as gone.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            # The name in parentheses may hold anything: the fields follow the last one.
            state, *fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in (b"Z", b"X") else int(fields[18])


def resume(pid: int, started: int) -> None:
    """Let a stopped process run on, if it is still the one that started then."""
    if start_time(pid) == started:
        os.kill(pid, signal.SIGCONT)


def require_own(pid: int) -> int:
    """Check that a process is ours to limit, and return its start time.

    Raises:
        ValueError: `pid` is not the id of a single process.
        ProcessLookupError: No such process runs.
        PermissionError: It belongs to another user.
    """
    if pid <= 0:
        # kill() takes 0 and negative numbers for groups of processes, even for all.
        raise ValueError(f"pid is {pid}; the id of one process is a positive number")
    started = start_time(pid)
    if started is None:
        raise ProcessLookupError(f"process {pid} does not run; limit a process before it ends")
    owner = os.stat(f"/proc/{pid}").st_uid
    if owner != os.geteuid():
        raise PermissionError(
            f"process {pid} belongs to user {owner}, not to you ({os.geteuid()}); "
            "limit only processes that you started"
        )
    return started


def hold(pid: int, share: float, period: float = PERIOD) -> None:
    """Hold a process to `share` cores until it ends, or this process is to end or loses its parent.

    All threads of the process count, its children do not. It is left running. An idle process is
    never stopped. This must be the only work of the calling process: SIGTERM, SIGINT and SIGHUP, which
    end it, stay blocked there.

    Args:
        pid: The process, one of our own user's.
        share: Cores, positive.
        period: Seconds over which the share is held, positive.

    Raises:
        ValueError: `pid` is not the id of a single process.
        ProcessLookupError: No such process runs.
        PermissionError: It belongs to another user.
    """
    parent = os.getppid()
    started = require_own(pid)
    # A blocked signal that is polled cannot come between stopping and continuing. sigtimedwait would not do:
    # a process that is stopped in it for longer than it waits gets a signal that was never sent.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    budget = Budget(share, period)
    stopped, wait, pace = False, _SHORTEST_WAIT, 1.0
    try:
        then, used_then = time.monotonic(), _cpu_seconds(pid)
        # The parent is polled, since PR_SET_PDEATHSIG would send its signal already when the parent's
        # *thread* ends that started us.
        while not signal.sigpending() & _ENDING and os.getppid() == parent:
            time.sleep(wait)
            if start_time(pid) != started:
                return
            now, used = time.monotonic(), _cpu_seconds(pid)
            elapsed, spent = now - then, used - used_then
            then, used_then = now, used
            budget.settle(elapsed, spent)
            if not stopped:
                pace = max(1.0, spent / elapsed)
            if stopped != (budget.balance < 0):
                stopped = not stopped
                os.kill(pid, signal.SIGSTOP if stopped else signal.SIGCONT)
            wait = budget.next_look(pace)
    except (ProcessLookupError, FileNotFoundError):
        return  # ended between two checks
    finally:
        if stopped:
            resume(pid, started)


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process, those that have ended included."""
    # The id of another process's CPU clock, as clock_getcpuclockid(3) makes it: exact to the
    # nanosecond and one system call, where /proc has a file per thread and forgets the ended ones.
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _positive(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a positive, finite number")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments, those of this process by default.

    Returns:
        The exit status: 0 when the limit was ended or the process has ended, 1 if it could not
        be limited.
    """
    parser = argparse.ArgumentParser(
        prog="python -m worker.resources.duty_cycle",
        description="Hold a process of yours to a share of CPU by stopping and continuing it.",
    )
    parser.add_argument("pid", type=int, help="the process's id")
    parser.add_argument("share", type=_positive, help="cores that it may use, such as 0.25")
    parser.add_argument("--period", type=_positive, default=PERIOD, help="seconds (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    try:
        hold(chosen.pid, chosen.share, chosen.period)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Functions that run a user's training script as a worker."""

import atexit
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from evenpace._packages import check_folder
from idl.errors import InvalidRequestError
from worker.resources.cpu_limits import LimitKind, check_share, limit_cpu
from worker.session import Session


def check_script(script: Path) -> None:
    """Check that a training script can be run.

    Raises:
        InvalidRequestError: There is no such file.
        ImportError: The script's folder hides a package of ours.
    """
    if not script.is_file():
        raise InvalidRequestError(f"training script {str(script)!r}: no such file")
    check_folder(script.parent)


def run_script(script: Path, arguments: Sequence[str]) -> None:
    """Run a script as `python SCRIPT ARGUMENTS` would, in this process."""
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(str(script), run_name="__main__")


def be_a_group_of_one() -> None:
    """Let the script's `init_process_group` make a group of this process, unless a launcher has said more.

    The manager then has the workers form the group in which they train: see `evenpace.torch.balance`.
    """
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        os.environ.update(alone, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # of any port


def pin(cpu: int) -> None:
    """Keep this process on one CPU (InvalidRequestError: this process may not use that CPU)."""
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        allowed = ", ".join(str(number) for number in sorted(os.sched_getaffinity(0)))
        raise InvalidRequestError(f"cpu {cpu}: this process may use {allowed}") from error


def limit_when_ready(session: Session, share: float, name: str, kind: LimitKind) -> None:
    """Limit this process to `share` of a core from its first iteration on.

    The limit does not hold before: importing a framework takes seconds of CPU, which a tenth of a core makes
    half a minute.

    Raises:
        ValueError: The share is out of its range.
    """
    check_share(share)
    session.before_training.append(lambda: _limit(session, share, name, kind))


def _limit(session: Session, share: float, name: str, kind: LimitKind) -> None:
    limit = limit_cpu(os.getpid(), share, name, kind)
    session.log.of(__name__).info("limited to %g of a core by %s", share, limit.kind)
    # Runs before the session's own exit handler, which would be slow under the limit.
    atexit.register(limit.close)

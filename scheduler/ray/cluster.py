"""The connection of this process to a Ray cluster, and what it does there: submit a job, find it, end it."""

import contextlib
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, AuthenticationError, GetTimeoutError, RayError, RayTaskError

from idl.errors import DeadlineExceededError, InvalidRequestError, UnavailableError
from rpc.address import Address
from rpc.dial import dial
from scheduler.ray.controller import (
    NAMESPACE,
    Controller,
    News,
    actor_name,
    actor_names,
    process_actor,
)
from scheduler.ray.nodes import ask_head, in_sessions_of_their_own
from scheduler.ray.process_actor import remove_left_folders
from scheduler.ray.secrets import make_secrets
from scheduler.ray.submission import MANAGER, Submission

_OBJECT_STORE = 80 * 2**20  # bytes; gradients do not go through it, and Ray takes no less
HEAD_RESOURCE = "node:__internal_head__"
"""Resource that Ray gives to a cluster's head."""

_ANSWER_SECONDS = 10.0
_CHECK_SECONDS = 2.0  # from one look at the cluster's head to the next, while an answer is waited for
_KNOCK_SECONDS = 5.0
_STDERR = 2
_NO_TOKEN = (
    "it asks for a token, and this machine has none, or another one: set RAY_AUTH_MODE=token, and copy "
    "~/.ray/auth_token from its head"
)


@contextlib.contextmanager
def connection(
    address: str | None, *, cpus: int | None = None, working_dir: Path | None = None
) -> Iterator[str]:
    """Connect this process to a Ray cluster, or to one that is started on this machine and ends with it.

    Args:
        address: The cluster's address as Ray writes it, such as HOST:PORT or "auto"; None starts one.
        cpus: CPUs that the started cluster sets aside for workers; None for those of this machine.
        working_dir: A folder that is sent to all nodes, in which the job's processes run; None: none is sent.

    Yields:
        The cluster's address.

    Raises:
        UnavailableError: The cluster cannot be reached, or started.
        InvalidRequestError: This process is connected to one already.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if ray.is_initialized():
        raise InvalidRequestError(
            "this process is connected to a Ray cluster already: call ray.shutdown first"
        )
    # A cluster that was started before must not be found by chance.
    options: dict[str, Any] = {"address": address or "local"}
    if address is None:
        options |= {"num_cpus": cpus, "object_store_memory": _OBJECT_STORE, "include_dashboard": False}
    if working_dir is not None:
        options["runtime_env"] = {"working_dir": str(working_dir)}
    try:
        if address is not None and _knock(address):
            with _quiet():
                ask_head(address)
        with in_sessions_of_their_own():
            ray.init(
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                **options,
            )
    except (RayError, RuntimeError, OSError, ValueError) as error:
        where = "a Ray cluster on this machine" if address is None else f"the Ray cluster at {address}"
        why = _NO_TOKEN if isinstance(error, AuthenticationError) else error
        raise UnavailableError(f"cannot reach {where}: {why}") from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)  # Ray has set its own
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()
        if address is None:
            remove_left_folders()  # of actors that were killed


def _knock(address: str) -> bool:
    """Check that something listens at HOST:PORT; return whether the address is of this form.

    Raises:
        OSError: Nothing does.
    """
    try:
        where = Address.parse(address)
    except InvalidRequestError:
        return False  # one of Ray's own forms, such as "auto"
    dial(where, _KNOCK_SECONDS, None).close()
    return True


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep from the standard error what Ray's native part says there, besides raising an error."""
    sys.stderr.flush()
    saved = os.dup(_STDERR)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), _STDERR)
        yield
    finally:
        os.dup2(saved, _STDERR)
        os.close(saved)


class Handle:
    """An actor of ours on the cluster that this process is connected to.

    Args:
        what: What it is, for messages.
        advice: What is done where the cluster is lost, as the end of a sentence.
    """

    def __init__(self, what: str, actor: Any, advice: str = "") -> None:
        self.actor = actor
        self._what = what
        self._advice = advice

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the actor, and return its answer.

        Raises:
            DeadlineExceededError: It does not answer; Ray may be starting it again.
            UnavailableError: It has ended, or the whole cluster has.
            EvenpaceError: As the method does.
        """
        reference = getattr(self.actor, method).remote(*arguments)
        deadline = time.monotonic() + _ANSWER_SECONDS
        try:
            while not ray.wait([reference], timeout=_CHECK_SECONDS)[0] and time.monotonic() < deadline:
                self._check_cluster()
            return ray.get(reference, timeout=0)
        except (GetTimeoutError, ActorUnavailableError) as error:
            self._check_cluster()
            raise DeadlineExceededError(
                f"{self._what} has not answered for {_ANSWER_SECONDS:g} s; its node may be lost"
            ) from error
        except RayTaskError as error:
            raise error.cause from None  # an error of ours
        except RayError as error:
            raise UnavailableError(f"{self._what} has ended: {error}") from error

    def _check_cluster(self) -> None:
        """Check that the cluster's head listens (UnavailableError: it does not)."""
        where = ray.get_runtime_context().gcs_address
        try:
            _knock(where)
        except OSError as error:
            raise UnavailableError(
                f"{self._what}: the head of the Ray cluster at {where} is lost, and with it the cluster "
                f"itself{self._advice}"
            ) from error


class JobHandle(Handle):
    """A job on the cluster that this process is connected to.

    Args:
        controller: The actor that runs it.
    """

    def __init__(self, name: str, controller: Any) -> None:
        super().__init__(
            f"job {name!r}: its controller", controller, "; on another one, --resume goes on with the job"
        )
        self.name = name
        self._follower = uuid.uuid4().hex

    def news(self, known: News | None = None) -> News:
        """Return what is new since the news that are known; without any, all lines that are kept.

        Raises:
            DeadlineExceededError: The controller does not answer; Ray may be starting it again.
            UnavailableError: It has ended, or the whole cluster has.
        """
        news: News = self.ask("news", self._follower, *((known.start, known.last) if known else ("", 0)))
        return news

    def credentials(self) -> Mapping[str, bytes]:
        """Return the files of a certificate and a token with which the job's services can be called."""
        files: Mapping[str, bytes] = self.ask("credentials")
        return files

    def reports(self) -> list[dict[str, Any]]:
        """Return what workers have reported; see `scheduler.ray.training.read_reports`."""
        reports: list[dict[str, Any]] = self.ask("reports")
        return reports

    def cancel(self) -> None:
        """End the job; `news` tells when it has ended."""
        self.ask("cancel")

    def resize(self, workers: int) -> None:
        """Have the job use up to so many workers from now on (InvalidRequestError: it cannot)."""
        self.ask("resize", workers)

    def goodbye(self) -> None:
        """Let the controller end, too, once the job has: its end is known."""
        with contextlib.suppress(UnavailableError, DeadlineExceededError):
            self.ask("goodbye")


def submit(submission: Submission, attempt: int = 0) -> JobHandle:
    """Start a job on the cluster that this process is connected to.

    Args:
        submission: The job.
        attempt: Which start of a placed job this is, from 1 on: it has the workers that `Controller.place`
            names. 0 for a job that has as many workers as it was submitted with.

    Raises:
        InvalidRequestError: There is a job of this name, or Ray refuses an amount of a resource.
    """
    check_resources(submission)
    controller = ray.remote(Controller).options(
        name=actor_name(submission.job),
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        # The loss of the head ends all jobs anyway.
        resources={HEAD_RESOURCE: 0.001},
        max_concurrency=16,
        max_restarts=-1,
        max_task_retries=-1,
    )
    try:
        return JobHandle(submission.job, controller.remote(submission, make_secrets(submission.job), attempt))
    except ValueError as error:
        raise InvalidRequestError(
            f"job {submission.job!r}: one of this name runs on the cluster; "
            f"`evenpace attach {submission.job}` follows it, another --name starts another"
        ) from error


def check_resources(submission: Submission) -> None:
    """Check that Ray accepts the amounts of resources that a job's processes are to have.

    Raises:
        InvalidRequestError: It refuses one; the message has Ray's reason.
    """
    for kind, name in (("service", MANAGER), ("worker", "w0")):
        try:
            process_actor(name, submission)
        except ValueError as error:
            raise InvalidRequestError(f"resources of each {kind}: {error}") from error


def find(name: str, among: Collection[str]) -> JobHandle:
    """Return the job of a name.

    Args:
        among: Names of the jobs that run, and may be found.

    Raises:
        InvalidRequestError: It is none of them.
    """
    try:
        if name in among:
            return JobHandle(name, ray.get_actor(actor_name(name), NAMESPACE))
    except ValueError:  # it has just ended
        pass
    raise InvalidRequestError(
        f"job {name!r}: no such job runs on the cluster; there are: {', '.join(among) or 'none'}"
    )


def jobs() -> list[str]:
    """Return the names of the jobs that run on the cluster."""
    return sorted(name for name in actor_names() if "/" not in name)

"""The processes of a job on a Ray cluster: their command lines, files, and the resources that they take."""

from collections.abc import Mapping

from scheduler.ray.process_actor import FOLDER, LISTEN, TLS, Task
from scheduler.ray.secrets import TOKEN_FILE, TOKEN_KEY_FILE, JobSecrets
from scheduler.ray.submission import MANAGER, Submission
from scheduler.ray.training import FOLDER_VARIABLE, WORKER_VARIABLE

_SERVICE = ("--listen", LISTEN, "--tls", f"{FOLDER}/{TLS}", "--token-key", f"{FOLDER}/{TOKEN_KEY_FILE}")


def task(name: str, submission: Submission, secrets: JobSecrets) -> Task:
    """Return the task of a process of a job, by the process's name."""
    if name == MANAGER:
        least = str(submission.workers.least)
        command = ("manager", *_SERVICE, "--workers", least, *_state(name, submission))
        return Task(name, (*command, *submission.manager_options), secrets.service)
    if name in submission.services:
        command = ("ps", *_SERVICE, *_state(name, submission))
        return Task(name, (*command, *submission.shard_options), secrets.service)
    command = ("worker", "--job", submission.job, "--name", name)
    for service in submission.services:
        option = "--manager" if service == MANAGER else "--ps"
        command += (option, f"@{FOLDER}/{service}.address")
    command += ("--tls", f"{FOLDER}/{TLS}", "--token-file", f"{FOLDER}/{TOKEN_FILE}")
    if submission.all_reduce and not submission.fixed_group:
        command += ("--keep", str(submission.kept))
    script = str(submission.script)
    command += (*submission.worker_options, f"{FOLDER}/{script}" if script in submission.files else script)
    files = {**submission.files, **secrets.client}
    environment = {
        "PYTHONUNBUFFERED": "1",  # what the script prints is followed
        FOLDER_VARIABLE: str(submission.folder),
        WORKER_VARIABLE: name,
        **submission.environment,
    }
    return Task(name, (*command, *submission.arguments), files, environment)


def resources(name: str, submission: Submission) -> Mapping[str, float]:
    """Return the resources that Ray sets aside for a process, by Ray's names."""
    if name in submission.services:
        return submission.resources_per_service
    wanted = {
        "CPU": submission.cpus_per_worker,
        "GPU": submission.gpus_per_worker,
        **submission.resources_per_worker,
    }
    return {resource: amount for resource, amount in wanted.items() if amount}


def _state(name: str, submission: Submission) -> tuple[str, ...]:
    """Return the option for a service's state; a fixed group of workers begins again without any."""
    return () if submission.fixed_group else ("--state", str(submission.folder / name))

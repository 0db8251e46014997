"""A check of the container engine, which only clusters in containers need."""

import shutil
import subprocess
from collections.abc import Iterator

from evenpace.doctor.findings import Finding, Subject, note, ok

_IMAGES = ("evenpace-manager", "evenpace-ps", "evenpace-worker")
_SECONDS = 2.0


def engine(subject: Subject) -> Iterator[Finding]:
    """Check for Docker, compose, and evenpace's images."""
    if shutil.which("docker") is None:
        yield ok("containers", "no docker here; only clusters in containers need it")
        return
    version, reason = _asked("docker", "version", "--format", "{{.Server.Version}}")
    if not version:
        yield note("containers", f"docker does not answer: {reason}", "start it, where containers are wanted")
        return
    compose = _asked("docker", "compose", "version")[0] or _asked("docker-compose", "version")[0]
    images, _ = _asked("docker", "image", "ls", "--format", "{{.Repository}}")
    missing = [image for image in _IMAGES if image not in images.split()]
    summary = f"docker {version}, {'with' if compose else 'without'} compose"
    if not compose:
        yield note("containers", summary, "install docker-compose, where docker-compose.yml is to be used")
    elif missing:
        yield note("containers", f"{summary}; no image {', '.join(missing)}", "`make images` builds them")
    else:
        yield ok("containers", f"{summary}; evenpace's images are built")


def _asked(*command: str) -> tuple[str, str]:
    """Return the output of a command, or empty output and the reason of its failure."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SECONDS, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {_SECONDS:g} s"
    except OSError as error:
        return "", str(error)
    if done.returncode:
        return "", " ".join((done.stderr or done.stdout).split()) or f"status {done.returncode}"
    return done.stdout.strip(), ""

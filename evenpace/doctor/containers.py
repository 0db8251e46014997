"""Whether a container engine is here, for who runs clusters in containers; nothing else needs one."""

import shutil
import subprocess
from collections.abc import Iterator

from evenpace.doctor.findings import Finding, Subject, note, ok

_IMAGES = ("evenpace-manager", "evenpace-ps", "evenpace-worker")
_SECONDS = 2.0


def engine(subject: Subject) -> Iterator[Finding]:
    """Docker, compose, and evenpace's images."""
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
    said = f"docker {version}, {'with' if compose else 'without'} compose"
    if not compose:
        yield note("containers", said, "install docker-compose, where docker-compose.yml is to be used")
    elif missing:
        yield note("containers", f"{said}; no image {', '.join(missing)}", "`make images` builds them")
    else:
        yield ok("containers", f"{said}; evenpace's images are built")


def _asked(*command: str) -> tuple[str, str]:
    """What a command prints, or else why it does not."""
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

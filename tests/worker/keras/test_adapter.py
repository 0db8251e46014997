"""The Keras adapter, in a process of its own: other tests have Keras on another backend."""

import subprocess
import sys

import pytest

from tests import SCRIPTS


@pytest.mark.ci
def test_the_cases_pass():
    """All cases pass, in one process, since importing TensorFlow takes long; failures are printed."""
    files = [
        str(SCRIPTS / f"{name}.py") for name in ("keras_cases", "keras_push_cases", "keras_weight_cases")
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    result = subprocess.run(command, capture_output=True, text=True, timeout=560, check=False)
    assert result.returncode == 0, result.stdout + result.stderr

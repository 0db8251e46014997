"""The Keras adapter, in processes of its own: other tests have Keras on another backend."""

import subprocess
import sys

import pytest

from tests import SCRIPTS


@pytest.mark.ci
@pytest.mark.parametrize("name", ["keras_cases", "keras_push_cases"])
def test_the_cases_pass(name):
    """All cases of a file pass; failures are printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(SCRIPTS / f"{name}.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=560, check=False)
    assert result.returncode == 0, result.stdout + result.stderr

"""The Keras adapter, in a process of its own: other tests have Keras on another backend."""

import subprocess
import sys

import pytest

from tests import SCRIPTS

CASES = SCRIPTS / "keras_cases.py"


@pytest.mark.slow
def test_the_cases_pass():
    """All cases of keras_cases.py pass; failures are printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=560, check=False)
    assert result.returncode == 0, result.stdout + result.stderr

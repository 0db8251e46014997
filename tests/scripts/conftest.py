"""What is different for the cases in this folder, which run in a process of their own."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _quick_starts():
    """Start no process to fork others from: few are started, if any."""

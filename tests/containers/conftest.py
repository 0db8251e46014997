"""Fixture of the tests with containers: an engine, without which they skip."""

import pytest

from tests.containers import engine


@pytest.fixture(scope="session", autouse=True)
def _engine():
    """Skip, and say what is missing, where no containers can be run."""
    reason = engine.why_not()
    if reason is not None:
        pytest.skip(reason)

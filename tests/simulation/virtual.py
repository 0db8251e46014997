"""Tests that run in a simulated world: their services, workers and waits take virtual time."""

import logging

from tests.simulation.product import product
from tests.simulation.world import World

_SECONDS = 2_000.0  # of virtual time, after which a test must have ended


class _ToItsProcess(logging.Handler):
    """Writes lines of log to where the process that runs has its standard error."""

    def emit(self, record):
        """Write a line."""
        running = World.current.running
        if running is not None and running.popen is not None:
            running.popen.log(self.format(record))


def _wait_until(condition, what, seconds=240.0):
    world = World.current
    end = world.now + seconds
    while not (result := condition()):
        assert world.now < end, f"{what} did not come about within {seconds:g} s"
        world.sleep(0.02)
    return result


def run(item, seed=0):
    """Run a test function in a world of its own.

    Args:
        item: Pytest's.
        seed: The world's.
    """
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    if "wait_until" in arguments:
        arguments["wait_until"] = _wait_until
    handler, ends = _ToItsProcess(), []
    with product() as copy, World(seed) as world:
        test = getattr(copy.test_module(item.module.__name__), item.originalname)

        def body():
            try:
                test(**arguments)
            except Exception as error:  # noqa: BLE001 - raised by the test itself
                ends.append(error)
            else:
                ends.append(None)

        world.spawn(world.process("test"), body)
        logging.getLogger().addHandler(handler)
        try:
            world.run(lambda: ends or world.failures, _SECONDS)
        finally:
            logging.getLogger().removeHandler(handler)
        for error in [*ends, *(error for _, error in world.failures)]:
            if error is not None:
                raise error

"""The trainer: fits run in a process of their own, and no failure of theirs stops the manager."""

import asyncio
import os
import tracemalloc
from pathlib import Path

import numpy as np
import psutil
import pytest

from batchsize_manager.learning import trainer
from batchsize_manager.learning.trainer import Trainer
from tests.fits import Die, Double, Endless, Refuse, Sum


def run_fits(*fits):
    """Submit fits to one trainer, all at once, and return their results."""

    async def submit():
        trainer = Trainer()
        loop = asyncio.get_running_loop()
        answers = [loop.create_future() for _ in fits]
        for fit, answer in zip(fits, answers, strict=True):
            trainer.submit(fit, answer.set_result)
        try:
            return await asyncio.wait_for(asyncio.gather(*answers), 240)
        finally:
            trainer.close()

    return asyncio.run(submit())


def test_fits_run_one_after_the_other_in_one_other_process():
    """All fits run in the same process, which is not this one and is gone after `close`."""
    answers = run_fits(Double(1.5), Double(4))
    processes = {int(weights["process"][0]) for weights in answers}

    assert [weights["doubled"][0] for weights in answers] == [3.0, 8.0]
    assert len(processes) == 1
    assert os.getpid() not in processes
    assert not psutil.pid_exists(processes.pop())


def test_a_fits_arrays_are_sent_without_a_copy():
    """Sending a fit allocates far less in this process, whose rounds would wait, than the fit's arrays."""
    rows = [np.full((4, 1000), float(i)) for i in range(100)]

    async def submit():
        trainer, loop = Trainer(), asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        try:
            trainer.submit(Double(1), first.set_result)  # once it is there, the process is
            await asyncio.wait_for(first, 240)
            tracemalloc.start()
            trainer.submit(Sum(rows), second.set_result)
            return await asyncio.wait_for(second, 240), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            trainer.close()

    weights, most = asyncio.run(submit())

    assert weights["sum"].tolist() == [4000 * 99 * 100 / 2]
    assert most < 100 * 4000 * 8 / 4


def test_a_fit_that_raises_gives_none_and_its_reason_is_logged(caplog):
    """The next fit runs as if none had failed."""
    failed, done = run_fits(Refuse(), Double(2))

    assert failed is None
    assert done["doubled"][0] == 4.0
    assert "nothing to be learned here" in caplog.text


def test_a_process_that_dies_is_replaced(caplog):
    """The fit that killed its process gives None; the next runs in a new process."""
    before, died, after = run_fits(Double(1), Die(), Double(3))

    assert died is None
    assert after["doubled"][0] == 6.0
    assert after["process"] != before["process"]
    assert "the training process has died" in caplog.text


def test_a_fit_that_hangs_is_given_up(tmp_path, monkeypatch, caplog):
    """The process of a fit that takes too long is replaced, and the next fit runs."""

    async def run():
        patient, loop = Trainer(), asyncio.get_running_loop()
        hung, done = loop.create_future(), loop.create_future()
        try:
            with monkeypatch.context() as impatient:
                impatient.setattr(trainer, "_FIT_SECONDS", 0.2)
                patient.submit(Endless(str(tmp_path / "started")), hung.set_result)
                assert await asyncio.wait_for(hung, 240) is None
            patient.submit(Double(2), done.set_result)
            return (await asyncio.wait_for(done, 240))["doubled"][0]
        finally:
            patient.close()

    assert asyncio.run(run()) == 4.0
    assert "the training process has not answered for 0.2 s" in caplog.text


def test_close_does_not_wait_for_a_running_fit(tmp_path, wait_until):
    """An endless fit ends with its process, and its callback is not called."""
    started = tmp_path / "started"
    heard = []

    async def run():
        trainer = Trainer()
        trainer.submit(Endless(str(started)), heard.append)
        try:
            await asyncio.to_thread(wait_until, lambda: started.exists() and started.read_text(), "the fit")
        finally:
            trainer.close()

    asyncio.run(run())

    assert heard == []
    assert not psutil.pid_exists(int(started.read_text()))


def test_the_process_yields_to_others():
    """The process has a lower priority than all others."""

    async def run():
        trainer = Trainer()
        answer = asyncio.get_running_loop().create_future()
        trainer.submit(Double(1), answer.set_result)
        try:
            process = int((await asyncio.wait_for(answer, 240))["process"][0])
            return psutil.Process(process).nice()
        finally:
            trainer.close()

    assert asyncio.run(run()) > psutil.Process().nice()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_nothing_is_started_before_it_is_needed():
    """A trainer without a fit starts no process."""

    async def run():
        before = set(psutil.Process().children())  # some of which may end meanwhile
        trainer = Trainer()
        try:
            return set(psutil.Process().children()) - before
        finally:
            trainer.close()

    assert not asyncio.run(run())

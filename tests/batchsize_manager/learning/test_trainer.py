"""The trainer: fits run in a process of their own, and no failure of theirs stops the manager."""

import asyncio
import os
import tracemalloc

import numpy as np
import psutil

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


def test_a_fit_that_fails_gives_none_and_the_reason_is_logged(caplog):
    """It raises, or kills its process, which is replaced; the next fit runs as if none had failed."""
    refused, before, died, after = run_fits(Refuse(), Double(1), Die(), Double(3))

    assert refused is None
    assert died is None
    assert (before["doubled"][0], after["doubled"][0]) == (2.0, 6.0)
    assert after["process"] != before["process"]
    assert "nothing to be learned here" in caplog.text
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
    """An endless fit ends with its process, and its callback is not called.

    The process is there from the first fit on, and has a lower priority than others.
    """
    started = tmp_path / "started"
    heard = []

    async def run():
        before = set(psutil.Process().children())  # some of which may end meanwhile
        trainer = Trainer()
        try:
            assert set(psutil.Process().children()) <= before
            trainer.submit(Endless(str(started)), heard.append)
            await asyncio.to_thread(wait_until, lambda: started.exists() and started.read_text(), "the fit")
            assert psutil.Process(int(started.read_text())).nice() > psutil.Process().nice()
        finally:
            trainer.close()

    asyncio.run(run())

    assert heard == []
    assert not psutil.pid_exists(int(started.read_text()))

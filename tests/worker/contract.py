"""What each adapter does, whatever its framework: tests that its own suite collects, by a class of its own.

An adapter is driven through a small class, `Sgd`: SGD over a list of parameters, whose values and gradients
go in and come out as arrays of float64.
"""

import re
import threading
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import pytest

from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.plan import JobSpec, permutation
from tests.services import OpenServices, in_threads
from worker.session import Session, SessionConfig

NOBODY = SessionConfig(("127.0.0.1", 1), (("127.0.0.1", 1),))
SAMPLES = np.arange(31.0)[:, None]
# Types of parameters, and a difference that each can hold near 1.
DTYPES = {"float64": 2.0**-50, "float32": 2.0**-20, "bfloat16": 2.0**-6, "float16": 2.0**-9}


class Sgd(Protocol):
    """Plain SGD on one worker, by an adapter's `distribute`.

    Args:
        start: The parameters' values.
        rates: The learning rate of each step; the last one holds for all that follow.
        dtypes: Each parameter's type; None: float32.
        options: Those of `distribute`.
    """

    values: list[np.ndarray]  # the parameters' values now
    dtypes: list[str]  # their types now

    def __init__(
        self,
        start: Sequence[Any],
        loader: Any,
        rates: Sequence[float] = (1.0,),
        dtypes: Sequence[str] | None = None,
        **options: Any,
    ) -> None: ...

    def step(self, *gradients: np.ndarray) -> None:
        """Take one step with a gradient for each parameter."""


class Contract:
    """The tests; a subclass names the adapter's loader, and the class that drives it."""

    loader: ClassVar[type]
    sgd: ClassVar[type[Sgd]]

    @pytest.fixture
    def services(self):
        """Services of a job of one worker."""
        with OpenServices(1) as services:
            yield services

    @pytest.fixture
    def pair(self):
        """Services of a job of two workers."""
        with OpenServices(2, silence=120.0) as services:
            yield services

    @pytest.mark.parametrize("drop_last", [False, True])
    def test_each_epoch_goes_through_each_sample_once(self, drop_last):
        """Workers divide each epoch exactly; a last batch too small for all blocks none of them."""
        seen, last = [{}, {}, {}], [None] * 3

        def train(number, session):
            options = {"shuffle": True, "seed": 3, "drop_last": drop_last}
            loader = self.loader(SAMPLES, batch_size=10, session=session, **options)
            sgd = self.sgd([np.zeros(2)], loader, rates=[0.5])
            for epoch in range(2):
                for batch in loader:
                    if session.assignment.count:
                        seen[number].setdefault(epoch, []).extend(np.ravel(batch).tolist())
                    sgd.step(np.ones(2))
            last[number] = sgd.values[0].tolist()

        with OpenServices(3, 2, silence=120.0) as services:
            sessions = [services.session(f"w{m}", bounds=Bounds(maximum=m)) for m in (9, 4, 2)]
            in_threads(*(lambda pair=pair: train(*pair) for pair in enumerate(sessions)))
        for epoch in range(2):
            order = permutation(JobSpec(31, 10, seed=3), epoch)
            together = sorted(index for part in seen for index in part[epoch])
            assert together == sorted(order[: 30 if drop_last else 31].tolist())
        assert last == [[-3.0 if drop_last else -4.0] * 2] * 3

    def test_workers_start_from_the_first_ones_parameters(self, pair):
        """Parameters that begin differently are made equal before the first step."""
        found = []

        def start(value):
            loader = self.loader(SAMPLES, batch_size=4, session=pair.session(f"w{value}"))
            found.append(self.sgd([np.full((3, 2), value), value], loader).values)

        in_threads(lambda: start(1.0), lambda: start(2.0))
        for one, other in zip(*found, strict=True):
            assert np.array_equal(one, other)
        assert {found[0][1].item()} == set(found[0][0].ravel()) <= {1.0, 2.0}

    @pytest.mark.parametrize("other", [(2, 3), (2, 2)])
    def test_models_that_differ_are_refused(self, pair, other):
        """A worker with another model, even of as many elements, gets an error that shows both shapes."""
        started = threading.Event()

        def start(name, shape):
            loader = self.loader(SAMPLES, batch_size=4, session=pair.session(name))
            loader.session.join()
            assert name == "w0" or started.wait(60)
            self.sgd([np.zeros(shape)], loader)
            started.set()

        said = rf"of 'w1' is .*{re.escape(str(other))}.*that of 'w0' is .*\(3, 2\)"
        with pytest.raises(InvalidRequestError, match=said):
            in_threads(lambda: start("w0", (3, 2)), lambda: start("w1", other))

    def test_a_schedule_reaches_the_parameter_server(self, services):
        """A learning rate's change counts from the next step on."""
        loader = self.loader(SAMPLES[:4], batch_size=1, session=services.session("w"))
        sgd = self.sgd([0.0], loader, rates=[1.0, 0.5, 0.25, 0.125])
        seen = [0.0]
        for _ in loader:
            sgd.step(-np.ones(()))
            seen.append(float(sgd.values[0]))
        assert np.diff(seen).tolist() == [1.0, 0.5, 0.25, 0.125]

    def test_learning_rates_follow_the_batch_by_the_rule_that_is_named(self, services):
        """A step of four times the first batch has twice the rate by the rule sqrt."""
        loader = self.loader(SAMPLES[:8], batch_size={0: 2, 1: 8}, session=services.session("w"))
        with pytest.raises(InvalidRequestError, match="scale_lr 'cubic'"):
            self.sgd([0.0], loader, scale_lr="cubic")
        sgd = self.sgd([0.0], loader, scale_lr="sqrt")
        found = []
        for _ in range(2):
            for _ in loader:
                sgd.step(np.ones(()))
                found.append(float(sgd.values[0]))
        assert found == [-1.0, -2.0, -3.0, -4.0, -6.0]

    def test_a_step_without_a_batch_is_refused(self, services):
        """A step before the loop, twice in a batch, or after an epoch is refused, and every sample counts.

        So does each learning rate once.
        """
        loader = self.loader(SAMPLES[:4], batch_size=2, session=services.session("w"))
        sgd = self.sgd([np.zeros(1)], loader, rates=[1.0, 0.5])

        def refuse():
            with pytest.raises(InvalidRequestError, match="samples were not loaded"):
                sgd.step(np.ones(1))

        refuse()
        for _ in range(2):
            for _ in loader:
                sgd.step(-np.ones(1))
                refuse()
        assert sgd.values[0].tolist() == [2.5]

    def test_a_second_optimiser_is_refused_and_the_first_goes_on(self, services):
        """A second distribute is refused before it changes anything, and the first parameters are trained."""
        loader = self.loader(SAMPLES[:4], batch_size=2, session=services.session("w"))
        sgd = self.sgd([np.zeros(3)], loader)
        with pytest.raises(InvalidRequestError, match="give one optimiser the parameters of all models"):
            self.sgd([np.ones((2, 2))], loader)
        for _ in loader:
            sgd.step(-np.ones(3))
        assert sgd.values[0].tolist() == [2.0] * 3

    @pytest.mark.parametrize(("dtype", "step"), DTYPES.items())
    def test_parameters_keep_what_their_type_can_hold(self, services, dtype, step):
        """Also beside those of float32, each element is pushed, stepped and pulled with all of its digits."""
        start = 1 + np.arange(3) * step
        loader = self.loader(SAMPLES[:1], batch_size=1, session=services.session("w"))
        sgd = self.sgd([start, np.zeros(2)], loader, dtypes=[dtype, "float32"])
        assert np.array_equal(sgd.values[0], start)
        for _ in loader:
            sgd.step(np.full(3, step), np.zeros(2))
        assert sgd.dtypes == [dtype, "float32"]
        assert np.array_equal(sgd.values[0], start - step)

    def test_complex_parameters_are_refused(self):
        """Their type is named, before anything is connected."""
        loader = self.loader(SAMPLES[:4], batch_size=2, session=Session(NOBODY))
        with pytest.raises(InvalidRequestError, match=r"is of complex64: .*imaginary part"):
            self.sgd([np.zeros(2), np.zeros(2)], loader, dtypes=["float32", "complex64"])

    def test_a_batch_of_more_samples_than_there_are_is_refused(self):
        """The error has the value."""
        with pytest.raises(InvalidRequestError, match="batch_size 32"):
            self.loader(SAMPLES, batch_size=32, session=Session(NOBODY))

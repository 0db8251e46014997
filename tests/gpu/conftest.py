"""The devices that tests train on."""

import pytest
import torch


@pytest.fixture
def gpu():
    """The first CUDA device, without which the test is skipped."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda:0")


@pytest.fixture(
    params=[pytest.param("cpu", marks=pytest.mark.release), pytest.param("gpu", marks=pytest.mark.gpu)]
)
def device(request):
    """Each device on which a test is to hold."""
    return request.getfixturevalue("gpu") if request.param == "gpu" else torch.device("cpu")

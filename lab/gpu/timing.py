"""What a worker's stopwatch sees of a GPU's work, which is done later than it is asked for."""

import time
from statistics import median
from typing import Any

import torch
from torch import nn

from lab.gpu.models import workloads
from lab.gpu.setup import Setup, seconds


def run(setup: Setup) -> dict[str, Any]:
    """Forward and backward passes of ResNet-32, timed in four ways; medians in seconds.

    - `asked`: by the clock, without waiting for the GPU: too short.
    - `synchronised`: by the clock, waiting for the GPU before and after.
    - `events`: by events on the stream, as under all-reduce.
    - `pushed`: by the clock until the gradients have been copied to the host, as `worker.torch.optimizer`
      does it: the copy waits for the GPU, so that nothing is missed.
    """
    workload = workloads(setup.quick)["resnet32"]
    model = workload.make().to(setup.device)
    parameters = list(model.parameters())
    host = [torch.empty(p.shape) for p in parameters]
    result = {}
    for size in (2,) if setup.quick else (32, 256, 1024):
        inputs, classes = workload.batch(size, setup.device)

        def passes(inputs: torch.Tensor = inputs, classes: torch.Tensor = classes) -> None:
            model.zero_grad()
            nn.functional.cross_entropy(model(inputs), classes).backward()

        taken: dict[str, list[float]] = {"asked": [], "synchronised": [], "events": [], "pushed": []}
        for repeat in range(1 if setup.quick else 13):
            once = {}
            begin = setup.now()
            passes()
            once["asked"] = time.perf_counter() - begin
            once["synchronised"] = setup.now() - begin
            once["events"] = seconds(passes, setup.device)
            begin = time.perf_counter()
            passes()
            for place, parameter in zip(host, parameters, strict=True):
                assert parameter.grad is not None
                place.copy_(parameter.grad)
            once["pushed"] = time.perf_counter() - begin
            if repeat >= 2 or setup.quick:
                for name, value in once.items():
                    taken[name].append(value)
        result[str(size)] = {name: median(values) for name, values in taken.items()}
    return result

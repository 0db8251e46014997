"""Script of a worker under faults that trains in `DistributedDataParallel`, and keeps a journal.

The journal gets the version of the parameters with which a batch begins, before the backward pass the samples
of this worker's part, and after the optimiser's step that it was taken. Otherwise as `journalling_worker`.
"""

import time
import zlib
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import evenpace
from lab.chaos import reference_training as task
from lab.chaos.journalling_worker import JournalWriter, worker_options


class Network(nn.Module):
    """The network of `reference_training`."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(
            torch.from_numpy(part.copy()) for part in task.views(task.first_parameters())
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the scores, (samples, classes)."""
        first, first_bias, second, second_bias = self.parts
        scores: torch.Tensor = torch.tanh(inputs @ first + first_bias) @ second + second_bias
        return scores

    def flat(self) -> Any:
        """Return the parameters as an array, (elements,)."""
        return torch.cat([part.detach().view(-1) for part in self.parts]).numpy()


def main() -> None:
    """Train as the argument says."""
    options = worker_options()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    spec = task.SCHEDULED if options.schedule else task.SPEC
    inputs, labels = (torch.from_numpy(array[: spec.dataset_size]) for array in task.make_data())
    loader = evenpace.torch.DataLoader(
        torch.utils.data.TensorDataset(inputs, labels, torch.arange(spec.dataset_size)),
        task.SCHEDULE if options.schedule else spec.total_batch_size,
        shuffle=spec.shuffle,
        seed=spec.seed,
        micro_batch=options.micro_batch,
    )
    network = Network()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), **task.OPTIONS)  # type: ignore[arg-type]
    evenpace.torch.balance(model, loader, optimizer)
    session = evenpace.session()
    journal = JournalWriter(options.journal)

    def note_step(*_: Any) -> None:
        assert session.assignment is not None
        journal.write("stepped", session.assignment.attempt, session.assignment.iteration)

    optimizer.register_step_post_hook(note_step)
    while session.released is None:
        for batch in loader:
            now = session.assignment
            assert now is not None
            prints = None if now.iteration % task.PRINT_EVERY else task.fingerprint(network.flat()).tolist()
            journal.write("reached", now.attempt, now.iteration, prints)
            if options.stop.exists() and now.iteration >= int(options.stop.read_text()):
                np.savez(options.out, version=now.iteration, parameters=network.flat())
                return
            crc = zlib.crc32(
                (batch[2].numpy() if options.micro_batch is None else batch.part.indices).tobytes()
            )
            told = (now.epoch, now.batch_start, now.total)
            journal.write("computed", now.attempt, now.iteration, now.start, now.count, crc, *told)
            optimizer.zero_grad()
            pieces = (batch,) if options.micro_batch is None else evenpace.torch.micro_batches(batch)
            for features, targets, _ in pieces:
                loss = nn.functional.cross_entropy(model(features), targets)
                loss.backward()
            optimizer.step()
            time.sleep(options.pause + options.per_sample * now.count)


if __name__ == "__main__":
    main()

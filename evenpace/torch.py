"""What a PyTorch training script uses: `DataLoader`, `distribute`, and `within_memory`."""

from typing import Any

from evenpace.context import session as current_session
from worker import torch_data
from worker.session import Session
from worker.torch_data import MapStyleDataset
from worker.torch_memory import MemoryExhaustedError, watch_memory, within_memory
from worker.torch_optimizer import distribute

__all__ = ["DataLoader", "MemoryExhaustedError", "distribute", "watch_memory", "within_memory"]


class DataLoader(torch_data.DataLoader):
    """`worker.torch_data.DataLoader` in this process's session, unless another is given."""

    def __init__(
        self, dataset: MapStyleDataset, batch_size: int = 1, *, session: Session | None = None, **options: Any
    ) -> None:
        super().__init__(dataset, batch_size, session=session or current_session(), **options)

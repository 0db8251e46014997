"""The configuration of the demo: a value that checks itself, and imports little."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from batchsize_manager.config import ManagerConfig
from batchsize_manager.policies import POLICIES
from evenpace.local.fields import Limit
from idl.settings import Checked, Setting
from lab.fields import ImageData, Seed, Shares
from rpc.address import Address

_BATCH_SIZES = {"digits": 720}  # by data set; others have the next
_BATCH_SIZE = 512
_ANY_PORT = Address("127.0.0.1", 0)


@dataclass(frozen=True)
class DemoConfig(Checked):
    """The configuration of the demo: the training, its workers and its outputs."""

    shares: Shares = (0.8, 0.4, 0.2, 0.1)
    data: ImageData = "digits"
    # Passes over the data; None for about 84 iterations.
    epochs: Annotated[int | None, Setting("Passes over the data.  [default: by data set]", least=1)] = None
    batch_size: Annotated[int | None, Setting("Over all workers.  [default: by data set]", least=1)] = None
    policy: Annotated[str, Setting("Of the balanced run.", choices=POLICIES)] = ManagerConfig.policy
    seed: Seed = 1
    limit_kind: Limit = "auto"
    out: Annotated[Path, Setting("Folder for report and logs.")] = Path("runs/demo")
    # Where the live page is, on loopback.
    http: Annotated[Address, Setting("Where the live page is; port 0 takes a free one.")] = _ANY_PORT

    @property
    def total_batch_size(self) -> int:
        """Samples of a batch, over all workers."""
        return self.batch_size or _BATCH_SIZES.get(self.data.partition(":")[0], _BATCH_SIZE)

    @property
    def ideal_speedup(self) -> float:
        """The speed-up that the shares alone allow: the even split goes at the pace of the slowest worker."""
        return sum(self.shares) / (len(self.shares) * min(self.shares))

    @property
    def workers(self) -> dict[str, float]:
        """Each worker's name and share."""
        return {f"worker-{i}": share for i, share in enumerate(self.shares)}

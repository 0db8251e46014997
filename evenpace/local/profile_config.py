"""The configuration of a profile: a value that checks itself, and imports little."""

import math
from dataclasses import dataclass
from typing import Annotated

from evenpace.local.fields import Limit
from idl.settings import Setting, check_settings


@dataclass(frozen=True)
class ProfileConfig:
    """What is measured of a script, and on which device (ValueError: a value is not allowed)."""

    steps: Annotated[int, Setting("Steps of each batch size.", least=1)] = 20
    smallest: Annotated[
        int | None,
        Setting(
            "Samples of the smallest batch, at least the script's own minimum.  "
            "[default: 8; with micro-batches, one of them]",
            least=1,
        ),
    ] = None
    largest: Annotated[
        int | None, Setting("Samples of the largest batch, if it fits.  [default: what fits]", least=1)
    ] = None
    device: Annotated[
        str | None,
        Setting("Name of the kind of device.  [default: the GPU's name, or the CPU's and its cores]"),
    ] = None
    cpu_share: Annotated[
        float | None, Setting("Measure with so many cores at most.  [default: all]", above=0, below=math.inf)
    ] = None
    limit_kind: Limit = "auto"
    all_reduce: Annotated[
        bool, Setting("For a script of torch.distributed: no parameter server, a process group of one.")
    ] = False

    def __post_init__(self) -> None:
        check_settings(self)
        if self.smallest and self.largest and self.smallest > self.largest:
            raise ValueError(f"smallest {self.smallest}: must be at most the largest, {self.largest}")

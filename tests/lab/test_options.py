"""Options of the lab's commands come from the fields of configurations."""

from pathlib import Path

import pytest

from lab.attacks.config import HostileConfig
from lab.bench.against_ddp import TrainConfig
from lab.bench.balance import BalanceConfig
from lab.bench.group_changes import GroupChangesConfig
from lab.bench.load_generators import LoadConfig
from lab.bench.node_losses import NodesConfig
from lab.bench.recovery import RecoveryConfig
from lab.bench.sharded_transfers import ShardsConfig
from lab.bench.spot_market import SpotConfig
from lab.chaos.config import ChaosConfig
from lab.demo_config import DemoConfig
from lab.experiments.config import ContendedOptions, CoordinationConfig, MigrationConfig
from lab.traces import Perturbation
from tests.evenpace.settled import as_parameters, check_option

CONTENDED = ("contention", "table3", "fig9", "fig10")
COMMANDS = {
    "demo": (DemoConfig(),),
    "lab chaos": (ChaosConfig(),),
    "lab bench shards": (ShardsConfig(),),
    "lab bench recovery": (RecoveryConfig(),),
    "lab bench groups": (GroupChangesConfig(),),
    "lab bench nodes": (NodesConfig(),),
    "lab bench spot": (SpotConfig(Path(__file__)),),
    "lab bench load": (LoadConfig(),),
    "lab bench hostile": (HostileConfig(),),
    "lab bench train": (TrainConfig(),),
    "lab bench balance": (BalanceConfig(),),
    **{f"lab experiment {name}": (ContendedOptions(out=Path("runs") / name),) for name in CONTENDED},
    **{f"lab experiment {name}": (CoordinationConfig(out=Path("runs") / name),) for name in ("fig6", "fig7")},
    "lab experiment fig8": (MigrationConfig(out=Path("runs/fig8")),),
    "lab trace usage": (Perturbation(),),
    "lab trace contention": (Perturbation(),),
}
OTHER_DEFAULT = {("lab experiment fig8", "iteration")}  # by their number


@pytest.mark.slow
@pytest.mark.parametrize(("command", "config", "one", "setting"), as_parameters(COMMANDS))
def test_an_option_has_the_default_and_the_help_of_its_field(command, config, one, setting):
    """For every field of a configuration that has an option."""
    check_option(command, config, one, setting, own_default=(command, one.name) not in OTHER_DEFAULT)

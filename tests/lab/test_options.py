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
from lab.experiments.comparison import ContentionConfig
from lab.experiments.coordination import CoordinationConfig
from lab.experiments.fig9 import Figure9Config
from lab.experiments.fig10 import Figure10Config
from lab.experiments.migration import MigrationConfig
from lab.experiments.table3 import Table3Config
from lab.traces import Perturbation
from tests.evenpace.settled import as_parameters, check_option

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
    "lab experiment contention": (ContentionConfig(),),
    "lab experiment table3": (Table3Config(),),
    "lab experiment fig9": (Figure9Config(),),
    "lab experiment fig10": (Figure10Config(),),
    "lab experiment fig6": (CoordinationConfig(),),
    "lab experiment fig8": (MigrationConfig(),),
    "lab trace usage": (Perturbation(),),
    "lab trace contention": (Perturbation(),),
}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "config", "one", "setting"), as_parameters(COMMANDS))
def test_an_option_has_the_default_and_the_help_of_its_field(command, config, one, setting):
    """For every field of a configuration that has an option."""
    check_option(command, config, one, setting)

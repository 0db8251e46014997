"""Options of the lab's commands come from the fields of configurations."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from evenpace.cli.settings import configured
from lab.attacks.config import HostileConfig
from lab.bench.config import (
    BalanceConfig,
    GroupChangesConfig,
    LoadConfig,
    NodesConfig,
    RecoveryConfig,
    ShardsConfig,
    SpotConfig,
    TrainConfig,
)
from lab.chaos.config import ChaosConfig
from lab.commands.options import in_minutes
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
    "lab bench ps": (ShardsConfig(),),
    "lab bench recovery": (RecoveryConfig(), GroupChangesConfig()),
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
OTHER_DEFAULT = {
    ("lab bench load", "generators"),  # by the CPUs
    *((command, "seconds") for command in ("lab bench load", "lab bench hostile")),  # by the minutes
}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "config", "one", "setting"), as_parameters(COMMANDS))
def test_an_option_has_the_default_and_the_help_of_its_field(command, config, one, setting):
    """For every field of a configuration that has an option."""
    check_option(command, config, one, setting, own_default=(command, one.name) not in OTHER_DEFAULT)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [((), 60), (("--minutes", 0.5), 30), (("--seconds", 7), 7), (("--minutes", 2, "--seconds", 7), 7)],
)
def test_seconds_go_before_minutes(options, seconds):
    """Benchmarks have both options, and one duration."""
    given = []

    @click.command()
    @in_minutes()
    @configured(LoadConfig, "config", seconds=None)
    def command(config):
        given.append(config)

    CliRunner().invoke(command, list(map(str, options)))
    assert given == [LoadConfig(seconds=seconds)]

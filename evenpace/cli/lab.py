"""`evenpace lab`: measurements, experiments and tests of evenpace itself."""

import click

from evenpace.cli.bench import bench
from evenpace.cli.bench_hostile import bench_hostile
from evenpace.cli.bench_load import bench_load
from evenpace.cli.chaos import chaos
from evenpace.cli.experiment import experiment
from evenpace.cli.mapping import mapping
from evenpace.cli.paper_figures import paper_figures
from evenpace.cli.planted import planted
from evenpace.cli.simulate import simulate
from evenpace.cli.trace import trace
from evenpace.cli.unequal_figures import fig6, fig7, fig8


@click.group()
def lab() -> None:
    """Measure evenpace, compare it, simulate clusters, and test it by faults."""


for _command in (bench, experiment, simulate, trace, chaos, planted):
    lab.add_command(_command)
for _command in (bench_load, bench_hostile):
    bench.add_command(_command)
for _command in (fig6, fig7, fig8, paper_figures, mapping):
    experiment.add_command(_command)

"""The groups whose commands are in several modules: `evenpace lab bench` and `evenpace lab experiment`."""

from lab.commands.bench import bench
from lab.commands.bench_hostile import bench_hostile
from lab.commands.bench_load import bench_load
from lab.commands.experiment import experiment
from lab.commands.mapping import mapping
from lab.commands.paper_figures import paper_figures
from lab.commands.unequal_figures import fig6, fig7, fig8

for _command in (bench_load, bench_hostile):
    bench.add_command(_command)
for _command in (fig6, fig7, fig8, paper_figures, mapping):
    experiment.add_command(_command)

"""The group whose commands are in several modules: `evenpace lab bench`."""

from lab.commands.bench import bench
from lab.commands.bench_hostile import bench_hostile
from lab.commands.bench_load import bench_load

for _command in (bench_load, bench_hostile):
    bench.add_command(_command)

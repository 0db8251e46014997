"""`evenpace lab`: measurements, experiments and tests of evenpace itself."""

import click

from evenpace.cli.sections import LazyGroup


@click.group(
    cls=LazyGroup,
    modules={
        "bench": "lab.commands.groups:bench",
        "experiment": "lab.commands.groups:experiment",
        "simulate": "lab.commands.simulate:simulate",
        "trace": "lab.commands.trace:trace",
        "chaos": "lab.commands.chaos:chaos",
    },
)
def lab() -> None:
    """Measure evenpace, compare it, simulate clusters, and test it by faults."""

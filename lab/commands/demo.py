"""`evenpace demo`."""

from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from evenpace.cli.options import example, user_mistakes
from evenpace.cli.settings import configured
from lab.demo_config import DemoConfig

_OF_MAPPING = ("mapping", "data", "seed", "ps_shards", "out", "json_path")  # options


@click.command()
@example("evenpace demo --shares 0.8,0.4,0.2,0.1 --json demo.json")
@configured(DemoConfig, "config")
@click.option("--no-http", is_flag=True, help="No live page.")
@click.option(
    "--mapping",
    is_flag=True,
    help="Train with batch normalisation and dropout instead, in micro-batches, on 1 worker and on 4 uneven "
    "ones; takes --data, --seed, --ps-shards, --out and --json.",
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), default=None, help="Write the summary here."
)
def demo(config: DemoConfig, no_http: bool, mapping: bool, json_path: Path | None) -> None:
    """Train on uneven workers, first with an even split, then balanced, and compare."""
    if mapping:
        _check_options_of_mapping()
        from lab.demo import run_mapping_demo

        with user_mistakes():
            run_mapping_demo(config, json_path)
        return
    from lab.demo import run_demo

    with user_mistakes():
        run_demo(replace(config, http=None) if no_http else config, json_path)


def _check_options_of_mapping() -> None:
    """Check that no option is given that has no part in `--mapping`."""
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is ParameterSource.COMMANDLINE and parameter.name not in _OF_MAPPING:
            raise click.UsageError(f"{parameter.opts[0]}: has no part in --mapping")

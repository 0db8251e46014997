"""`evenpace doctor`: looks over this machine and a cluster."""

from pathlib import Path

import click

from evenpace.cli.options import as_client, example, user_mistakes
from rpc.credentials import Credentials


@click.command()
@example("evenpace doctor --manager 10.0.0.1:4300 --ps 10.0.0.1:4400 --tls secrets/w0 --state state")
@click.option("--manager", default=None, metavar="HOST:PORT", help="A BatchSizeManager to call.")
@click.option("--ps", "shards", multiple=True, metavar="HOST:PORT", help="A shard to call; may be repeated.")
@click.option("--partitions", default=None, metavar="HOST:PORT", help="A DataPartitionManager to call.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=None,
    help="A folder that a service is to keep its state in. A file is written there for a moment.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    help="Seconds for each step of a call.",
)
@click.option("--json", "as_json", is_flag=True, help="Print an object of JSON.")
@as_client
def doctor(
    manager: str | None,
    shards: tuple[str, ...],
    partitions: str | None,
    state: Path | None,
    timeout: float,
    as_json: bool,
    credentials: Credentials | None,
) -> None:
    """Check this machine, and services if they are named, and say what to do about each finding.

    Nothing is changed. The status is 1 where there is a problem; warnings are for speed and safety.
    """
    with user_mistakes():
        from evenpace.doctor import show
        from evenpace.doctor.checkup import run
        from evenpace.doctor.findings import Subject
        from rpc.address import Address

        findings = run(
            Subject(
                Address.parse(manager) if manager is not None else None,
                tuple(Address.parse(shard) for shard in shards),
                Address.parse(partitions) if partitions is not None else None,
                state,
                credentials or Credentials(),
                timeout,
            )
        )
    if as_json:
        click.echo(show.as_json(findings))
    else:
        show.show(findings)
    if any(finding.level == "problem" for finding in findings):
        click.get_current_context().exit(1)

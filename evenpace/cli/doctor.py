"""`evenpace doctor`: checks of this machine and of a cluster."""

from dataclasses import replace
from pathlib import Path

import click

from evenpace.cli.options import example, user_mistakes
from evenpace.cli.peers import as_client
from evenpace.cli.settings import configured
from evenpace.doctor.findings import Subject
from rpc.credentials import Credentials


@click.command(context_settings={"allow_interspersed_args": False})
@example("evenpace doctor --manager 10.0.0.1:4300 --ps 10.0.0.1:4400 --tls secrets/w0 --state state")
@configured(Subject, "subject", without=("credentials",))
@click.option("--json", "as_json", is_flag=True, help="Print an object of JSON.")
@click.option(
    "--all-reduce",
    is_flag=True,
    help="The script reduces gradients itself, as with DistributedDataParallel.",
)
@as_client
@click.argument("script", type=click.Path(path_type=Path), required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def doctor(
    subject: Subject,
    as_json: bool,
    all_reduce: bool,
    credentials: Credentials | None,
    script: Path | None,
    arguments: tuple[str, ...],
) -> None:
    """Check this machine, and services if they are named, and say what to do about each finding.

    Nothing is changed. The status is 1 where there is a problem; warnings are for speed and safety.

    With a training SCRIPT, its first batches are computed in parts by a worker of its own, without a step, to
    see what its loss is a mean over: where that is neither the samples nor what the loader's weight= says,
    training with uneven batches would be wrong without a word.
    """
    with user_mistakes():
        if script is not None:
            from evenpace.launch import check_script

            check_script(script)
        from evenpace.doctor import show
        from evenpace.doctor.checkup import run

        findings = run(replace(subject, credentials=credentials or Credentials()))
        if script is not None:
            from evenpace.doctor.loss_check import check

            findings += check(script, arguments, all_reduce)
    if as_json:
        click.echo(show.as_json(findings))
    else:
        show.show(findings)
    if any(finding.level == "problem" for finding in findings):
        click.get_current_context().exit(1)

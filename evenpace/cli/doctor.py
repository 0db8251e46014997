"""`evenpace doctor`: checks of this machine and of a cluster."""

from dataclasses import replace

import click

from evenpace.cli.options import example, user_mistakes
from evenpace.cli.peers import as_client
from evenpace.cli.settings import configured
from evenpace.doctor.findings import Subject
from rpc.credentials import Credentials


@click.command()
@example("evenpace doctor --manager 10.0.0.1:4300 --ps 10.0.0.1:4400 --tls secrets/w0 --state state")
@configured(Subject, "subject", without=("credentials",))
@click.option("--json", "as_json", is_flag=True, help="Print an object of JSON.")
@as_client
def doctor(subject: Subject, as_json: bool, credentials: Credentials | None) -> None:
    """Check this machine, and services if they are named, and say what to do about each finding.

    Nothing is changed. The status is 1 where there is a problem; warnings are for speed and safety.
    """
    with user_mistakes():
        from evenpace.doctor import show
        from evenpace.doctor.checkup import run

        findings = run(replace(subject, credentials=credentials or Credentials()))
    if as_json:
        click.echo(show.as_json(findings))
    else:
        show.show(findings)
    if any(finding.level == "problem" for finding in findings):
        click.get_current_context().exit(1)

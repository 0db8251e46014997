"""`evenpace certs` and `evenpace token`: certificates and tokens of a cluster's processes."""

import time
from pathlib import Path

import click

from evenpace.cli.options import example, user_mistakes

_FOLDER = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def certs() -> None:
    """Make certificates for a cluster that is put together by hand; see docs/security.md."""


@certs.command("init")
@example("evenpace certs init secrets")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option("--days", type=click.IntRange(1, 36500), default=3650, show_default=True, help="Valid for.")
@click.option("--force", is_flag=True, help="Replace one that is there: what it has issued is worth nothing.")
def certs_init(folder: Path, days: int, force: bool) -> None:
    """Make a certificate authority in DIR. Its key, ca-key.pem, must never leave that folder."""
    from rpc.certificates import create_authority

    with user_mistakes():
        click.echo(f"authority: {create_authority(folder, days, force=force)}")


@certs.command("issue")
@example("evenpace certs issue secrets manager --host 10.0.0.1 --host manager.example.org")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.argument("name")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME|IP",
    help="Under which a service is called; may be repeated. Left out: for a worker, which only calls.",
)
@click.option("--days", type=click.IntRange(1, 36500), default=365, show_default=True, help="Valid for.")
@click.option("--force", is_flag=True, help="Replace one that is there, such as one that expires.")
def certs_issue(folder: Path, name: str, hosts: tuple[str, ...], days: int, force: bool) -> None:
    """Issue a certificate by the authority in DIR: the folder DIR/NAME is what --tls takes."""
    from rpc.certificates import issue

    with user_mistakes():
        files = issue(folder, name, hosts, days, force=force)
    assert files.key is not None
    click.echo(f"certificate and key: {files.key.parent}")


@certs.command("show")
@example("evenpace certs show secrets/manager/certificate.pem")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_FILE)
def certs_show(files: tuple[Path, ...]) -> None:
    """Say whose certificates are in files, what for, and until when they are valid."""
    from rpc.certificates import describe

    for file in files:
        for found in describe(file):
            click.echo(f"{file}: {found.subject}{', an authority' if found.authority else ''}")
            click.echo(f"  issued by {found.issuer}, number {found.serial}")
            click.echo(f"  valid from {found.begins:%Y-%m-%d %H:%M} to {found.expires:%Y-%m-%d %H:%M} UTC")
            if found.hosts:
                click.echo(f"  serves as {', '.join(found.hosts)}")


@click.group()
def token() -> None:
    """Make tokens for one job or all of a manager (docs/security.md), and for a shared cluster's users."""


@token.command("new-key")
@example("evenpace token new-key secrets/tokens.key")
@click.argument("file", type=_FILE)
@click.option("--add", is_flag=True, help="Before the keys that are in FILE: what these signed stays valid.")
def token_new_key(file: Path, add: bool) -> None:
    """Draw the key that services check tokens with, into FILE. Whoever has it can issue tokens."""
    from rpc.tokens import write_new_key

    with user_mistakes():
        write_new_key(file, add=add)
    click.echo(f"key: {file}")


@token.command("issue")
@example("evenpace token issue --key secrets/tokens.key --job digits --days 7 --out digits.token")
@click.option("--key", "key_file", required=True, type=_FILE, help="From `evenpace token new-key`.")
@click.option("--job", default=None, help="The job's name.")
@click.option("--all-jobs", is_flag=True, help="For who looks after all jobs; not for workers.")
@click.option(
    "--user", default=None, help="The name of a user of a shared cluster, for their own jobs there."
)
@click.option("--operator", is_flag=True, help="For who may do everything on a shared cluster.")
@click.option("--days", type=click.FloatRange(0, 36500), default=30, show_default=True, help="0: for ever.")
@click.option("--out", type=_FILE, default=None, help="A file, for its owner alone.  [default: print it]")
def token_issue(
    key_file: Path,
    job: str | None,
    all_jobs: bool,
    user: str | None,
    operator: bool,
    days: float,
    out: Path | None,
) -> None:
    """Issue a token for one job or all of a manager, or for a user or an operator of a shared cluster."""
    from rpc.tokens import ALL_JOBS, OPERATOR, Purpose, TokenKeys, issue, write_secret

    if (job is not None) + all_jobs + (user is not None) + operator != 1:
        raise click.UsageError("give --job, --all-jobs, --user or --operator, one of them")
    if user == OPERATOR:
        raise click.UsageError(
            f"--user {OPERATOR!r}: no user has this name; --operator issues an operator's token"
        )
    if user is not None or operator:
        purpose, name = Purpose.CLUSTER, OPERATOR if user is None else user
        whose = "operator" if operator else f"user {user}"
    else:
        purpose, name = Purpose.JOB, ALL_JOBS if job is None else job
        whose = "all jobs" if all_jobs else f"job {job}"
    with user_mistakes():
        text = issue(TokenKeys(key_file), name, int(time.time() + days * 86400) if days else 0, purpose)
        if out is None:
            click.echo(text)
        else:
            write_secret(out, text + "\n")
            click.echo(f"token for {whose}: {out}")

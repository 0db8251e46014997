"""Script of an honest worker: that of the chaos runs, after it has written its incarnation to a file."""

import click

from evenpace.context import session
from evenpace.lab.chaos import journalling_worker

IDENTITY = "incarnation "

if __name__ == "__main__":
    click.echo(f"{IDENTITY}{session().incarnation}")
    journalling_worker.main()

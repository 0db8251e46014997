"""Script of an honest worker, which prints its incarnation and then runs the script of the chaos runs."""

import click

from evenpace.context import session
from lab.chaos import journalling_worker

IDENTITY = "incarnation "

if __name__ == "__main__":
    click.echo(f"{IDENTITY}{session().incarnation}")
    journalling_worker.main()

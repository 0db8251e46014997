"""The script of an honest worker: that of the chaos runs, which says first by what identity it trains."""

import click

from evenpace.context import session
from evenpace.lab.chaos import journalling_worker

IDENTITY = "incarnation "

if __name__ == "__main__":
    click.echo(f"{IDENTITY}{session().incarnation}")
    journalling_worker.main()

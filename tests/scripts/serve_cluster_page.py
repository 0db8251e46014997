"""Serves the page about a shared cluster, whose status and record a test writes into a folder."""

import json
import sys
from pathlib import Path

import click

from evenpace.dashboard.cluster_page import cluster_page
from evenpace.dashboard.config import PageConfig
from evenpace.dashboard.listening import listen
from evenpace.dashboard.page_server import serve
from idl.errors import UnavailableError
from rpc.address import Address
from scheduler.cluster import history


class KeptScheduler:
    """A scheduler that is there as long as its status is, and notes how often it is asked."""

    def __init__(self, folder):
        self._folder = folder

    def status(self):
        """Return the status, unless its file is missing."""
        with (self._folder / "asked").open("a") as stream:
            stream.write("status\n")
        try:
            return json.loads((self._folder / "status.json").read_text())
        except FileNotFoundError as error:
            raise UnavailableError("the <scheduler> is away") from error

    def record(self):
        """Return the lines of the record."""
        with (self._folder / "asked").open("a") as stream:
            stream.write("record\n")
        return history.read(self._folder / history.FILE)


def main():
    """Serve until a signal comes; the interval is short, so that tests are."""
    config = PageConfig(Address("127.0.0.1", 0), viewers=int(sys.argv[2]), interval=0.1)
    page = cluster_page(KeptScheduler(Path(sys.argv[1])), config)
    serve(config, page, listen(config.http), lambda url: click.echo(f"page on {url}"))


if __name__ == "__main__":
    main()

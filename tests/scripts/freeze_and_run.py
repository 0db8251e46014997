"""A worker's script: runs another one, and freezes its process at a point of the protocol."""

import os
import runpy
import signal
import sys

import evenpace
from rpc.client import Client


def freeze_before(point, session):
    """Stop this process before it sends something.

    Args:
        point: ITERATION:METHOD:N, with the first iteration in which, and N calls of the method to pass over.
        session: That goes through the iterations.
    """
    iteration, method, left = point.split(":")
    iteration, left = int(iteration), int(left)
    send = Client.send

    def freezing(client, called, *arguments, **options):
        nonlocal left
        now = session.assignment
        if called == method and now is not None and now.iteration >= iteration and left >= 0:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGSTOP)
        send(client, called, *arguments, **options)

    Client.send = freezing


if __name__ == "__main__":
    _, point, *command = sys.argv
    freeze_before(point, evenpace.session())
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")

"""A worker's script: runs another one, and freezes its process at a point of the protocol."""

import runpy
import signal
import sys
import threading

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
    send, one_at_a_time = Client.send, threading.Lock()

    def freezing(client, called, *arguments, **options):
        nonlocal left
        now = session.assignment
        if called != method or now is None or now.iteration < iteration or left < 0:
            send(client, called, *arguments, **options)
            return
        with one_at_a_time:  # shards are called at once, each in a thread of its own
            left -= 1
            if left == -1:
                # By this thread's id, so that the thread itself cannot go on for a moment.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            send(client, called, *arguments, **options)

    Client.send = freezing


if __name__ == "__main__":
    _, point, *command = sys.argv
    freeze_before(point, evenpace.session())
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")

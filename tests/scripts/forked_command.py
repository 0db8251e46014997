"""`python`, forked by the zygote of the terminal that it is typed in, and executed where it cannot be.

Takes what `python` takes. This process stands for the one that is forked: it passes signals on, and ends as
that does. It leaves its process group to the other, which thus gets what is sent to the job.
"""

import json
import os
import signal
import socket
import sys

MODULES = ("evenpace", "torch.distributed.run")
TERMINAL = "EVENPACE_TERMINAL"  # the variable with the abstract address of the terminal's zygote
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Ask for the process, and wait for its end."""
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"] and arguments[1] in MODULES
    if is_module or (arguments and arguments[0].endswith(".py")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as zygote:
            if zygote.connect_ex("\0" + os.environ.get(TERMINAL, "")) == 0:
                request = {
                    "arguments": arguments[1:] if is_module else arguments,
                    "cwd": os.getcwd(),
                    "environment": dict(os.environ),
                    "group": os.getpgid(0),
                }
                socket.send_fds(zygote, [json.dumps(request).encode()], [0, 1, 2])
                if child := int(zygote.recv(64)):
                    follow(zygote, child)
    os.execv(sys.executable, [sys.executable, *arguments])


def follow(zygote: socket.socket, child: int) -> None:
    """Do as the child does."""
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: os.kill(child, number))
    if os.getsid(0) != os.getpid():  # else it leads a session, and has a group for itself
        os.setpgid(0, os.getpgid(os.getppid()))
    status = os.waitstatus_to_exitcode(int(zygote.recv(64)))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()

"""Entry point of `evenpace`, and of `python -m evenpace`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C is no error either while it is imported."""
    try:
        from evenpace.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()

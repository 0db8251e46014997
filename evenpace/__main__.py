"""Entry point of `python -m evenpace`, which is the same as `evenpace`."""

from evenpace.cli import main

main()

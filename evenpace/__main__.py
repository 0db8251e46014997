"""`python -m evenpace` is `evenpace`."""

from evenpace.cli import main

main()

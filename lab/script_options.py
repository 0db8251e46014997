"""Options of the scripts that the lab itself starts: one argument, in JSON."""

import argparse
import json
import sys
from typing import Any


def as_argument(**options: Any) -> str:
    """Return options as the argument of a script; paths and addresses are written as text."""
    return json.dumps(options, default=str)


def read_options(**defaults: Any) -> argparse.Namespace:
    """Return the options that this script was started with."""
    return argparse.Namespace(**defaults | json.loads(sys.argv[1]))

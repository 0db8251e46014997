"""Runs a training script in a session that `evenpace.connect` makes: MANAGER SCRIPT."""

import runpy
import sys

import evenpace

if __name__ == "__main__":
    evenpace.connect(sys.argv[1])
    runpy.run_path(sys.argv[2], run_name="__main__")

"""Runs a script as `python` does, without imports of its own where a zygote has made them."""

import runpy
import sys

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")

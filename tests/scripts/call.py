"""Calls a function of a module with strings, in a process of its own: MODULE FUNCTION STRING ..."""

import importlib
import sys

if __name__ == "__main__":
    module, function, *arguments = sys.argv[1:]
    getattr(importlib.import_module(module), function)(*arguments)

"""What each Python that tests start with this folder on its path does first.

It looks for garbage rarely: importing PyTorch, scikit-learn or Keras makes some 500,000 objects, which all
stay. To look through them again and again is a good part of the CPU time of a process that trains for a
second.

Unbuffered output is written line by line. Python writes a line's end apart from the line, so that the lines
of two programs that print into one file could lie beside each other.
"""

import gc
import os
import sys

gc.set_threshold(100_000, 50, 50)
if os.environ.get("PYTHONUNBUFFERED"):
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=False)

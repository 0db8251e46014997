"""What each Python that tests start with this folder on its path does first.

It looks for garbage rarely: importing PyTorch, scikit-learn or Keras makes some 500,000 objects, which all
stay. To look through them again and again is a good part of the CPU time of a process that trains for a
second.

Unbuffered output is written line by line. Python writes a line's end apart from the line, so that the lines
of two programs that print into one file could lie beside each other.

In a process of a Ray cluster, a policy of its scheduler fails while a file is there, which a variable names.
Users cannot bring that about, and it is Ray that starts the scheduler's process.
"""

import gc
import os
import sys

gc.set_threshold(100_000, 50, 50)
if os.environ.get("PYTHONUNBUFFERED"):
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=False)

if (failing := os.environ.get("EVENPACE_TESTS_FAILING_POLICY")) and "default_worker.py" in " ".join(
    sys.orig_argv
):
    from scheduler.policies.weighted_fair_sharing import WeightedFairSharing

    decide = WeightedFairSharing.allocate

    def _allocate(policy, at):
        if os.path.exists(failing):
            raise RuntimeError("a defect")
        return decide(policy, at)

    WeightedFairSharing.allocate = _allocate

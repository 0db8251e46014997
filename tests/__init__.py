"""Tests of everything.

They share the cores with each other. A library that spreads a small sum over all of them has its threads wait
for one another, and most of all where somebody else needs a core, too: each gets one thread. And every Python
that tests start looks for garbage rarely; see `startup/sitecustomize.py`.
"""

import os
from pathlib import Path

STARTUP = Path(__file__).parent / "startup"

# Before any of them is imported.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(STARTUP), os.environ.get("PYTHONPATH"))))

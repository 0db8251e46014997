"""Tests of everything.

They share the cores with each other. A library that spreads a small sum over all of them has its threads wait
for one another, and most of all where somebody else needs a core, too: each gets one thread. And every Python
that tests start looks for garbage rarely; see `startup/sitecustomize.py`.
"""

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "tests" / "scripts"
STARTUP = ROOT / "tests" / "startup"
EXAMPLES = ROOT / "examples"
SHARED_DATA = ROOT.parent / "shared" / "data"  # large, and beside the project only

# Before any of them is imported.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(STARTUP), os.environ.get("PYTHONPATH"))))

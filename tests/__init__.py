"""Tests of everything; the folders are named for what they test.

Tests share the cores with each other. A library that spreads a small sum over all of them has its threads wait for
one another, and most of all where somebody else needs a core, too: they get one thread, here before they are imported.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}

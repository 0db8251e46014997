"""What each Python that tests start with this folder on its path does first: look for garbage rarely.

Importing PyTorch, scikit-learn or Keras makes some 500,000 objects, which all stay. To look through them
again and again is a good part of the CPU time of a process that trains for a second.
"""

import gc

gc.set_threshold(100_000, 50, 50)

"""Tell a store at the port given gloo's address as rank 1 of 2, and wait for the other."""

import datetime
import sys

from torch import distributed

PATIENCE = datetime.timedelta(seconds=120)

store = distributed.TCPStore("127.0.0.1", int(sys.argv[1]), None, is_master=False, timeout=PATIENCE)
distributed.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=PATIENCE)

"""Training under faults: a cluster whose parts are killed, frozen and cut off, and what must hold of it."""

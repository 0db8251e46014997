"""Training under faults: a cluster whose parts are killed, frozen and cut off, and checks of its results."""

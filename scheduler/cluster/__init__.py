"""Many jobs on one live cluster: what is decided about them, without the engine that carries it out."""

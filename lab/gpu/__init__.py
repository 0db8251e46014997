"""Step times, memory, adapters and balancing on a machine with a GPU; see README.md."""

"""A worker's resources: its device, CPUs and memory, and the shares that others take of them."""

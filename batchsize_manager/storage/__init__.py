"""What a manager remembers of its jobs, and how it is written and read."""

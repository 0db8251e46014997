"""A job on one machine: its processes, their logs, and what `evenpace run` and `evenpace profile` do."""

"""A small transformer on text, over many uneven workers; `--help` lists its options.

Start it with `evenpace worker`, as docs/cluster.md shows; evenpace/workloads/common.py has the training loop.
"""

from evenpace.workloads.text import train_transformer

if __name__ == "__main__":
    train_transformer()

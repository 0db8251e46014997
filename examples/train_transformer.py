"""A small transformer on text, over many uneven workers; `--help` lists its options.

Start it with `evenpace worker`, as docs/cluster.md shows. The training loop is in
evenpace/lab/workloads/common.py.
"""

from evenpace.lab.workloads.text import train_transformer

if __name__ == "__main__":
    train_transformer()

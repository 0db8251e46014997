"""CifarNet on CIFAR-10, over many uneven workers; `--help` lists its options.

Start it with `evenpace worker`, as docs/cluster.md shows; evenpace/workloads/common.py has the training loop.
"""

from evenpace.workloads.images import train_cifarnet

if __name__ == "__main__":
    train_cifarnet()

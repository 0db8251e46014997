"""ResNet-32 on CIFAR-10, over many uneven workers; `--help` lists its options.

Start it with `evenpace worker`, as docs/cluster.md shows. The training loop is in
evenpace/lab/workloads/common.py.
"""

from evenpace.lab.workloads.images import train_resnet32

if __name__ == "__main__":
    train_resnet32()

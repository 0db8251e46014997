"""A linear SVM on sparse data, over many uneven workers; `--help` lists its options.

Start it with `evenpace worker`, as docs/cluster.md shows. The training loop is in
evenpace/lab/workloads/common.py.
"""

from evenpace.lab.workloads.linear import train_svm

if __name__ == "__main__":
    train_svm()

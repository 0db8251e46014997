"""Logistic regression on sparse data, over many uneven workers; `--help` lists its options.

Start it with `evenpace worker`, as docs/cluster.md shows; evenpace/workloads/common.py has the training loop.
"""

from evenpace.workloads.linear import train_logistic_regression

if __name__ == "__main__":
    train_logistic_regression()

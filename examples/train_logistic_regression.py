"""Logistic regression on sparse data, over many uneven workers; `--help` lists its options.

Start it with `evenpace worker`, as docs/cluster.md shows. The training loop is in
evenpace/lab/workloads/common.py.
"""

from evenpace.lab.workloads.linear import train_logistic_regression

if __name__ == "__main__":
    train_logistic_regression()

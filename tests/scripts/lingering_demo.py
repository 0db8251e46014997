"""The command line, whose clusters stay, however quick a run is, until whoever looks on has said so.

A demo evaluates few snapshots of the parameters: that takes as long as the training.
"""

import sys

from evenpace.cli import main
from evenpace.local.cluster import LocalCluster
from lab import demo


def linger(cluster, stop=LocalCluster.stop):
    """Stop a cluster once a line has come."""
    sys.stdin.readline()
    stop(cluster)


if __name__ == "__main__":
    LocalCluster.stop = linger
    demo._SNAPSHOTS = 4
    main()

"""Prometheus metrics of the parts of a cluster: read from their plain counts when somebody scrapes them."""

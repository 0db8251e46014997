"""Prometheus metrics of the parts of a cluster, read from their plain counts at each scrape."""

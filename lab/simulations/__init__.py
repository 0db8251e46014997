"""Simulations of a cluster's jobs from files of measurements and arrivals, several at once."""

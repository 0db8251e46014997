"""Training scripts that tests run as workers."""

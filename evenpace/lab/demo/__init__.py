"""The demo: `run` compares an even split with a balanced one, `train` is what its workers run."""

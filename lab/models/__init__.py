"""The workloads' networks, each as its source has it; they know nothing of data, workers or training."""

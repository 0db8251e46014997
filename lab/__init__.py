"""The lab: clusters on one machine and what runs on them: demo, benchmarks, chaos, experiments, workloads."""

"""Learning beside the job: fits in a process of their own, and fitted models kept and sent."""

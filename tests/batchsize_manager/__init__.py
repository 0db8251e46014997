"""Tests of the BatchSizeManager: jobs, plans, policies, and what a manager keeps."""

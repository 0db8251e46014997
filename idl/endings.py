"""Why a job that has not failed is over, in the words of the manager's answers, log and state."""

FINISHED = "all workers have finished"
"""The last of them has left, and not by an error."""

GONE = "all members have gone"
"""The last of them has left by an error, or was taken out."""

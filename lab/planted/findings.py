"""All findings of docs/track-record.md: those that can be planted, and why the others cannot."""

from lab.planted import chaos_runs, second_reading, state_machines, third_reading

_TABLES = (chaos_runs, state_machines, second_reading, third_reading)

PLANTED = tuple(planted for table in _TABLES for planted in table.PLANTED)
"""Those that can be planted, in the order of their tables."""

UNPLANTED = {symptom: reason for table in _TABLES for symptom, reason in table.UNPLANTED.items()}
"""Why others cannot, by the beginning of their row."""

"""The findings of docs/track-record.md, each as the change to the code that brings it back.

What takes a mend out again must be found by the tests that the finding names: `evenpace lab planted` plants
one finding at a time in a copy of the checkout, and runs its tests there.
"""

"""What a loader of any framework is built on: slices of batches, streams, and batches cut into pieces."""

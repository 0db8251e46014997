"""The base of every framework's loader: slices of batches, streams, and batches cut into pieces."""

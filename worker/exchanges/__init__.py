"""How the gradients of a job's workers meet: a protocol, and its implementations."""

"""Background work of the process, for all of its models."""

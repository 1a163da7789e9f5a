"""Complete example streams, each run by one command: python -m examples.electricity."""

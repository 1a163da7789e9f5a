"""Streams that a person would recognise, each one command: python -m examples.electricity."""

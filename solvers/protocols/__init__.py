"""Protocols of learners, and the types of what they return and store."""

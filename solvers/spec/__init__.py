"""Specifications: what a user may write, with defaults, and the learner it describes."""

"""Refits: solving the problem of a window, and applying the result to a learner."""

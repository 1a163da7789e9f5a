"""Refits: the optimum of a window, and how it enters a learner."""

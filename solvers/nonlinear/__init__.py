"""Learners of functions that are not linear: see boosted.py, net.py, neighbours.py, splines.py."""

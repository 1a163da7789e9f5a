"""Decisions on scores: labels of least expected cost, and alerts at a fixed rate."""

"""Losses: their formulas, as numbers that one kernel serves."""

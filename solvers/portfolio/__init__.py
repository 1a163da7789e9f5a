"""Many specifications on one stream, combined by weights that follow how well each does.

presets.py   the lists of members that have a name
fields.py    the specification of a portfolio and of its members
portfolio.py the learner
crew.py      its members: which learn side by side, which by themselves
fused.py     members that share one pass over a row; _fused.py: its kernels
_columns.py  a row in every scaling that they use, and what is known of each feature
_roots.py    the logistic steps of all of them at once
guest.py     members that run by themselves
rule.py      shares, calibration, losses; _rule.py: the rule, row by row
compare.py   whether one member does better than another
retained.py  the rows that a new member begins with
"""

from dualstream.solvers.portfolio.presets import PRESETS, REGRESSION_PRESETS

__all__ = ["PRESETS", "REGRESSION_PRESETS"]

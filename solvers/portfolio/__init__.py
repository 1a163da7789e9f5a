"""Portfolio: many learners on one stream, combined by exponential weights.

presets.py              named lists of members
spec.py                 the specification of a portfolio and of its members
learner.py              the learner
members.py              the member set: fused members, separate members, priors
fused_members.py        members that share one pass over a row; kernels in fused_kernels.py
stack_kernels.py        kernels: a member that combines the others
logistic_roots.py       kernels: the logistic dual steps of all members at once
single_member.py        members that learn separately
weighting_state.py       shares, calibration, losses; kernels in weighting_kernels.py
late_rule.py            a second set of shares, after late labels; kernel in late_kernels.py
confidence_sequence.py  comparison of two members
retained_rows.py        rows that a new member is trained on
"""

from dualstream.solvers.portfolio.presets import PRESETS, REGRESSION_PRESETS

__all__ = ["PRESETS", "REGRESSION_PRESETS"]

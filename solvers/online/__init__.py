"""Online learners, one algorithm per module."""

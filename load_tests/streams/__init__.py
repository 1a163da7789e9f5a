"""Untuned learners on real streams, beside Vowpal Wabbit, River and scikit-learn."""

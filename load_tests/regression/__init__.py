"""Untuned learners of numbers on real and made streams, beside those of other libraries."""

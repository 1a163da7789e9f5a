"""Regression benchmark: untuned learners on real and generated streams, and other libraries."""

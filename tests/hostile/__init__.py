"""Hostile clients against a real server: each is answered or disconnected.

    python -m tests.hostile

runs them in full numbers, measures the effect on other clients, and writes its section of
load_tests/SECURITY.md. `make test` runs a few of each.
"""

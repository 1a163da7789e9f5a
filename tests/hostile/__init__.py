"""Clients that mean harm, against a real server: each of them is answered or closed.

    python -m tests.hostile

sends them in full numbers, measures what others feel of it, and writes its section of
load_tests/SECURITY.md; `make test` sends a few of each.
"""

"""Dualstream: a server that learns from a stream, and its client."""

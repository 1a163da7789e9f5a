"""Peers: services that a user would write instead."""

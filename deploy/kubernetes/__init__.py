"""Manifests for Kubernetes."""

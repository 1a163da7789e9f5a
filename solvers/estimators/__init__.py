"""Estimators for scikit-learn and River."""

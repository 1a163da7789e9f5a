"""Prediction intervals and sets: adaptive conformal inference on the residuals of a stream."""

"""`algorithm: semiparametric`: a Gaussian kernel beside a few functions with names.

fields.py    its specification
learner.py   the window, the solution that is served, what a refit brings
view.py      its coefficients, as they are read out
_score.py    kernels: the named functions at a row, the running mean
refitting.py solving the window, elsewhere and in its own time
"""

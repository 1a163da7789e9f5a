"""`algorithm: semiparametric`: a Gaussian kernel expansion plus named functions.

spec.py          its specification
learner.py       the window, the served solution, and how a refit updates it
coefficients.py  its named coefficients
kernels.py       kernels: the named functions at a row, the running mean
refit.py         solving the window on a copy of the state
"""

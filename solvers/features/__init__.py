"""Feature stages: transformations of a row before its learner, in this order.

    hash        named features become indices, on parsing (rows/hashing.py): width 2^bits
    ages        times by the newest time learned (ages.py), in front of any model or portfolio
    scaling     each column by its own running moments (scaling.py)
    map         random Fourier features or Nystroem landmarks (fourier.py, nystroem.py)
    norm        each row by its own norm, or by a running mean of norms (norm.py)
    intercept   a last coordinate of 1 (rows/intercept.py), which kernels add themselves

Stages ignore labels. pipeline.py puts them in front of any learner. A model without scaling, map
and norm has no stage, and its learner is created directly.
"""

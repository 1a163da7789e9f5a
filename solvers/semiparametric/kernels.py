"""Kernels: named functions at a row, and the mean served before the first refit.

The functions are those of `offline.semiparametric.basis`, computed row by row: numpy's sine can
return other bits for a row in a batch than for a single row.
"""

import math

import numpy as np

from dualstream.solvers.jit import B1, F8, RO_F8, RO_F8_2D, RO_I4, RO_I8, kernel

FEATURE, POWER, PERIOD, SHIFT, N_COLUMNS = range(5)
"""Columns of `terms`: a power of x_feature or, with a period, a sine of it."""
SINC = 3.0
"""In place of a power: sin(t) / t with t = 2 pi (x_feature - shift) / period."""
MEAN, WEIGHT = range(2)


@kernel
def add_basis(
    indptr: RO_I8, indices: RO_I4, values: RO_F8, terms: RO_F8_2D, beta: RO_F8, out: F8
) -> None:
    """out[i] += sum_k beta_k psi_k(x_i); terms with beta 0 are skipped.

    terms (K, N_COLUMNS);  beta (K,);  out (n,)
    """
    for i in range(out.shape[0]):
        total = 0.0
        for k in range(beta.shape[0]):
            if beta[k] == 0.0:
                continue
            x, feature = 0.0, int(terms[k, FEATURE])
            for p in range(indptr[i], indptr[i + 1]):
                if indices[p] == feature:
                    x = values[p]
            if terms[k, POWER] == SINC:
                x -= terms[k, SHIFT]
                psi = math.sin(2.0 * math.pi * (np.fmod(x, terms[k, PERIOD]) / terms[k, PERIOD]))
                angle = 2.0 * math.pi * (x / terms[k, PERIOD])
                psi = psi / angle if angle != 0.0 else 1.0
            elif terms[k, PERIOD] > 0.0:
                # Remove whole periods first: the sine of a large number loses its digits.
                turns = np.fmod(x, terms[k, PERIOD]) / terms[k, PERIOD]
                psi = math.sin(2.0 * math.pi * (turns + terms[k, SHIFT]))
            elif terms[k, POWER] == 0.0:
                psi = 1.0
            elif terms[k, POWER] == 1.0:
                psi = x
            else:
                psi = x * x
            total += beta[k] * psi
        out[i] += total


@kernel
def learn_mean(
    labels: RO_F8, weights: RO_F8, epsilon: float, scores: F8, losses: F8, updated: B1, f: F8
) -> None:
    """Score each row by the weighted mean of all earlier labels, then add its label.

    scores, losses, updated  (n,) written; `updated` must be False initially
    f (2,)                   MEAN and WEIGHT, the sum of the weights
    """
    mean, total = f[MEAN], f[WEIGHT]
    for i in range(labels.shape[0]):
        scores[i] = mean
        losses[i] = max(0.0, abs(labels[i] - mean) - epsilon)
        if weights[i] > 0.0:
            total += weights[i]
            moved = mean + (weights[i] / total) * (labels[i] - mean)
            updated[i] = moved != mean
            mean = moved
    f[MEAN], f[WEIGHT] = mean, total


@kernel
def score_losses(labels: RO_F8, epsilon: float, scores: F8, losses: F8, rejected: B1) -> None:
    """Loss of each score; a row whose score or loss is not finite is rejected."""
    for i in range(labels.shape[0]):
        loss = max(0.0, abs(labels[i] - scores[i]) - epsilon)
        if abs(scores[i]) < math.inf and loss < math.inf:
            losses[i] = loss
        else:
            scores[i] = losses[i] = np.nan
            rejected[i] = True

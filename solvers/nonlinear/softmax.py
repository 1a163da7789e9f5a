"""Softmax of margins, and log odds of each class against all others."""

from dualstream.solvers.jit import F8, F8_2D, kernel
from dualstream.solvers.rows.scalar import clip, exp_of, log_of

MAX_MARGIN = 300.0
"""Limit of a margin: its exponential is finite and above 0, also summed over all classes."""
MAX_LOG_ODDS = 40.0
"""As the portfolio's limit of a score."""


@kernel(inline=True)
def total_of(numbers: F8) -> float:
    """The sum of numbers (K,); in four parts, as each addition waits for the previous one."""
    size = numbers.shape[0]
    whole = size - size % 4
    s0 = s1 = s2 = s3 = 0.0
    for c in range(0, whole, 4):
        s0 += numbers[c]
        s1 += numbers[c + 1]
        s2 += numbers[c + 2]
        s3 += numbers[c + 3]
    for c in range(whole, size):
        s0 += numbers[c]
    return (s0 + s1) + (s2 + s3)


@kernel(inline=True, apart=True)
def exponentials(margins: F8, out: F8) -> None:
    """out (K,): exp of margins (K,), which are within MAX_MARGIN."""
    for c in range(out.shape[0]):
        out[c] = exp_of(max(min(margins[c], MAX_MARGIN), -MAX_MARGIN))


@kernel(inline=True, apart=True)
def softmax(margins: F8, out: F8) -> None:
    """out (K,): the probability of each class by its margin (K,)."""
    exponentials(margins, out)
    share = 1.0 / total_of(out)
    for c in range(out.shape[0]):
        out[c] *= share


@kernel(apart=True)
def log_odds_of(margins: F8_2D, out: F8_2D) -> None:
    """out (n, K): log(p / (1 - p)) for the softmax p of each row of margins (n, K), K >= 2.

    Only of the likeliest class the rest would cancel: it is summed over the others.
    """
    for i in range(out.shape[0]):
        row = out[i]
        exponentials(margins[i], row)
        total, top = total_of(row), 0
        for c in range(1, row.shape[0]):
            if row[c] > row[top]:
                top = c
        likeliest = row[top]
        row[top] = 0.0
        others = total_of(row)
        for c in range(row.shape[0]):
            row[c] = log_of(max(row[c], 1e-300)) - log_of(max(total - row[c], 1e-300))
        row[top] = log_of(likeliest) - log_of(others)
        for c in range(row.shape[0]):
            row[c] = clip(row[c], -MAX_LOG_ODDS, MAX_LOG_ODDS)

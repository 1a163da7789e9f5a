"""Average precision of scores that were served."""

from collections.abc import Sequence


def average_precision(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """Mean precision at the positive rows, from the largest score on; 0 without a positive row."""
    ranked = sorted(zip(scores, labels, strict=True), key=lambda pair: -pair[0])
    hits, total = 0, 0.0
    for rank, (_, is_positive) in enumerate(ranked, 1):
        if is_positive:
            hits += 1
            total += hits / rank
    return total / max(hits, 1)

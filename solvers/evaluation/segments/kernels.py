"""Kernel of the segments: adds errors and predictions of rows to the sums of their segments."""

from dualstream.solvers.evaluation.progressive import errors_of
from dualstream.solvers.jit import F8, F8_3D, I8, RO_B1, RO_F8, RO_I4, RO_I8, U1_2D, kernel
from dualstream.solvers.profile.kernels import CODE_SHIFT, column_slot
from dualstream.solvers.protocols.learner import UNMARKED
from dualstream.solvers.rows.scalar import clip, log1pexp, sigmoid

MISSING, OTHER, FIRST = range(3)
"""Segments of a column: rows without a value, with a later value; then the values."""
MAX_VALUES = 100
"""Values of a column with a segment of their own: the first ones."""
SEGMENTS = FIRST + MAX_VALUES

ROWS, ERRORS, LOG_LOSS, PREDICTIONS, LABELS, MARKS = range(6)
"""Sums of a segment: rows, errors (0 or 1, or absolute), log-losses, probabilities or predictions,
positives or labels; then of each mark the rows that have one, and those where it is 1."""
SINCE_START, FADING, VIEWS = range(3)

BINARY, REGRESSION, MULTICLASS = range(3)
"""Tasks."""
MEAN_AGE = 10_000.0
"""Mean age of a row in the fading view, in rows of the model."""
_GROWTH = MEAN_AGE / (MEAN_AGE - 1.0)
_RESCALED_WEIGHT = 1e6
_LARGEST = 1e145
"""Terms are clipped to this, so that no sum is infinite."""


@kernel(inline=True)
def _add(line: int, terms: F8, weight: float, sums: F8_3D) -> None:
    for j in range(terms.shape[0]):
        sums[SINCE_START, line, j] += terms[j]
        sums[FADING, line, j] += weight * terms[j]


@kernel(apart=True)
def add_rows_to_segments(
    indptr: RO_I8,
    indices: RO_I4,
    labels: RO_F8,
    scores: RO_F8,
    log_losses: RO_F8,
    rejected: RO_B1,
    marks: U1_2D,
    task: int,
    has_log_loss: bool,
    table: I8,
    absent: RO_I8,
    weight: F8,
    terms: F8,
    sums: F8_3D,
) -> None:
    """Add the learned rows of a batch to the sums of their segments, in order.

    labels, scores   (n,); of classes: 0, and 1 for a mistake
    log_losses       (n,) of classes with probabilities, otherwise (0,)
    marks            (m, n) whether each row counts in a rate; 2 for a row without a mark
    table            (power of 2,) features of segments: line << CODE_SHIFT | index + 1
    absent           (columns,) line of rows without a feature of the column
    weight           (1,) of the last row in the fading view: it grows, so that no row touches the
                     segments of others
    terms            (MARKS + 2 m,) scratch
    sums             (VIEWS, 1 + columns * SEGMENTS, MARKS + 2 m); line 0 has all rows
    """
    terms[ROWS] = 1.0
    for i in range(indptr.shape[0] - 1):
        if rejected[i]:
            continue
        y, score = labels[i], scores[i]
        if task == REGRESSION:
            terms[ERRORS] = errors_of(score, y)[0]
            terms[PREDICTIONS] = clip(score, -_LARGEST, _LARGEST)
            terms[LABELS] = y
        elif task == BINARY:
            positive = y > 0.0
            terms[ERRORS] = 1.0 if positive != (score >= 0.0) else 0.0
            terms[LABELS] = 1.0 if positive else 0.0
            if has_log_loss:
                terms[LOG_LOSS] = min(log1pexp(-score if positive else score), _LARGEST)
                terms[PREDICTIONS] = sigmoid(score)
        else:
            terms[ERRORS] = score
            terms[LOG_LOSS] = log_losses[i] if has_log_loss else 0.0
        for m in range(marks.shape[0]):
            terms[MARKS + 2 * m] = 1.0 if marks[m, i] != UNMARKED else 0.0
            terms[MARKS + 2 * m + 1] = 1.0 if marks[m, i] == 1 else 0.0
        weight[0] *= _GROWTH
        if weight[0] > _RESCALED_WEIGHT:
            for line in range(sums.shape[1]):
                for j in range(terms.shape[0]):
                    sums[FADING, line, j] /= weight[0]
            weight[0] = 1.0
        _add(0, terms, weight[0], sums)
        # Bits of columns that the row has, and of the shared segments that have counted it.
        seen, shared = 0, 0
        for at in range(indptr[i], indptr[i + 1]):
            code = table[column_slot(table, int(indices[at]))]
            if code == 0:
                continue
            line = code >> CODE_SHIFT
            column = (line - 1) // SEGMENTS
            segment = line - 1 - column * SEGMENTS
            seen |= 1 << column
            if segment < FIRST:
                bit = 1 << (2 * column + segment)
                if shared & bit:
                    continue
                shared |= bit
            _add(line, terms, weight[0], sums)
        for column in range(absent.shape[0]):
            if not seen >> column & 1:
                _add(absent[column], terms, weight[0], sums)

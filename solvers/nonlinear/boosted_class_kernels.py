"""Kernels of boosted trees for classes: leaves that add to the margins of all classes.

In every kernel, besides the arrays of boosted_kernels.py, for 1 + K outputs (see class_scorer.py)
    margins  (W, R)     float32: the margin of each row of the ring for each output, R >= 1 + K
    vectors  (T, N, R)  what a leaf adds to the margins
    base     (R,)       the margins without trees
    m, p     (2, 1 + K), (n, 1 + K)  scratch: numbers of one row, probabilities of all
TARGET in `about` is the output of the row's class.
"""

from dualstream.solvers.jit import (
    F4,
    F4_2D,
    F8,
    F8_2D,
    F8_3D,
    I4_2D,
    I8,
    RO_F8,
    RO_I4,
    RO_I8,
    U1_2D,
    kernel,
)
from dualstream.solvers.nonlinear.boosted_kernels import (
    AT,
    DONE,
    NEEDS_COLUMN,
    NEEDS_ROW,
    ROWS,
    SAMPLES,
    TARGET,
    TREES,
    WEIGHT,
    count_row,
    enter_row,
    limited_weight,
)
from dualstream.solvers.nonlinear.dense_columns import count_features, dense_row
from dualstream.solvers.nonlinear.hashed_numbers import drawn_number
from dualstream.solvers.nonlinear.softmax import softmax, total_of
from dualstream.solvers.rows.scalar import clip


@kernel(inline=True, apart=True)
def add(more: F8, out: F8) -> None:
    """out += more, for all of `out`."""
    for c in range(out.shape[0]):
        out[c] += more[c]


@kernel(inline=True, apart=True)
def multiply(numbers: F8, factors: F8, out: F8) -> None:
    """out = numbers * factors."""
    for c in range(out.shape[0]):
        out[c] = numbers[c] * factors[c]


@kernel(inline=True, apart=True)
def widened(row: F4, out: F8) -> None:
    """out (1 + K,): the first numbers of a row in single precision."""
    for c in range(out.shape[0]):
        out[c] = row[c]


@kernel(inline=True, apart=True)
def add_to_margins(outputs: int, sign: float, more: F8, row: F4) -> None:
    """row += sign more, for the first numbers."""
    for c in range(outputs):
        row[c] += sign * more[c]


@kernel
def learn_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    class_ids: RO_I8,
    weights: RO_F8,
    start: int,
    scores: F8_2D,
    window: int,
    first_tree: int,
    renewal: int,
    keys: I8,
    columns: I8,
    counts: I8,
    k: I8,
    f: F8,
    x: F8,
    codes: U1_2D,
    sample: F4_2D,
    about: F8_2D,
    margins: F4_2D,
    leaves: U1_2D,
    edges: F8_2D,
    n_edges: I8,
    feature: I4_2D,
    threshold: F8_2D,
    left: I4_2D,
    vectors: F8_3D,
    base: F8,
) -> tuple[int, int]:
    """As boosted_kernels.learn_rows; scores (n, 1 + K) are margins, class_ids (n,) the classes."""
    for i in range(start, weights.shape[0]):
        begin, end = indptr[i], indptr[i + 1]
        learns = weights[i] > 0.0
        if learns:
            if k[ROWS] < window and k[ROWS] == codes.shape[0]:
                return i, NEEDS_ROW
            if count_features(indices, begin, end, codes.shape[1], keys, columns, counts, k) == 0:
                return i, NEEDS_COLUMN
        dense_row(indices, values, begin, end, keys, columns, k, x)
        at, row_scores = k[AT], scores[i]
        for c in range(row_scores.shape[0]):
            row_scores[c] = base[c]
        for t in range(k[TREES]):
            node = 0
            while feature[t, node] >= 0:
                node = left[t, node] + (1 if x[feature[t, node]] > threshold[t, node] else 0)
            add(vectors[t, node], row_scores)
            if learns:
                leaves[at, t] = node
        k[SAMPLES] += 1
        if not learns:
            continue
        enter_row(at, x, codes, sample, edges, n_edges, k)
        about[at, TARGET], about[at, WEIGHT] = 1 + class_ids[i], limited_weight(weights[i], k, f)
        for c in range(row_scores.shape[0]):
            margins[at, c] = row_scores[c]
        why = count_row(window, first_tree, renewal, k)
        if why != DONE:
            return i + 1, why
    return weights.shape[0], DONE


@kernel
def score_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    scores: F8_2D,
    keys: I8,
    columns: I8,
    k: I8,
    x: F8,
    feature: I4_2D,
    threshold: F8_2D,
    left: I4_2D,
    vectors: F8_3D,
    base: F8,
) -> None:
    """Margins (n, 1 + K) of rows."""
    for i in range(scores.shape[0]):
        dense_row(indices, values, indptr[i], indptr[i + 1], keys, columns, k, x)
        row_scores = scores[i]
        for c in range(row_scores.shape[0]):
            row_scores[c] = base[c]
        for t in range(k[TREES]):
            node = 0
            while feature[t, node] >= 0:
                node = left[t, node] + (1 if x[feature[t, node]] > threshold[t, node] else 0)
            add(vectors[t, node], row_scores)


@kernel
def class_weights(about: F8_2D, n: int, out: F8) -> None:
    """out (R,), which is 0 before: the weight of each output's rows among the first n."""
    for r in range(n):
        out[int(about[r, TARGET])] += about[r, WEIGHT]


@kernel
def draw_contrast(seed: int, first: int, contrast: F8) -> None:
    """contrast (1 + K,): drawn numbers from number `first` on."""
    for c in range(contrast.shape[0]):
        contrast[c] = drawn_number(seed, first + c)


@kernel
def contrast_slopes(
    margins: F4_2D,
    about: F8_2D,
    leaves: U1_2D,
    n: int,
    tree: int,
    shift: F8,
    vectors: F8_3D,
    contrast: F8,
    m: F8_2D,
    p: F8_2D,
    slopes: F8,
    curvatures: F8,
) -> None:
    """Add `shift` (R,) to the margins of n rows, subtract a tree (-1 for none), and derive the loss
    along one direction of the margins, `contrast` (1 + K,); p: their probabilities.
    """
    outputs = contrast.shape[0]
    for r in range(n):
        add_to_margins(outputs, 1.0, shift, margins[r])
        if tree >= 0:
            add_to_margins(outputs, -1.0, vectors[tree, leaves[r, tree]], margins[r])
        widened(margins[r], m[0])
        softmax(m[0], p[r])
        multiply(p[r], contrast, m[0])
        multiply(m[0], contrast, m[1])
        mean, square = total_of(m[0]), total_of(m[1])
        slopes[r] = about[r, WEIGHT] * (mean - contrast[int(about[r, TARGET])])
        curvatures[r] = about[r, WEIGHT] * max(square - mean * mean, 0.0)


@kernel(inline=True, apart=True)
def add_derivatives(weight: float, p: F8, slopes: F8, curvatures: F8) -> None:
    """Add weight p and weight p (1 - p)."""
    for c in range(p.shape[0]):
        share = weight * p[c]
        slopes[c] += share
        curvatures[c] += share * (1.0 - p[c])


@kernel
def fill_leaves(
    margins: F4_2D,
    about: F8_2D,
    leaves: U1_2D,
    n: int,
    tree: int,
    step: float,
    ridge: float,
    most_value: float,
    p: F8_2D,
    slopes: F8_2D,
    curvatures: F8_2D,
    vectors: F8_3D,
) -> None:
    """Set the vectors of a tree's leaves by a Newton step for each output, and add the tree to the
    margins of n rows.

    slopes, curvatures (N, 1 + K) are 0 before; p is that of contrast_slopes.
    """
    outputs = p.shape[1]
    for r in range(n):
        node, weight = leaves[r, tree], about[r, WEIGHT]
        add_derivatives(weight, p[r], slopes[node], curvatures[node])
        slopes[node, int(about[r, TARGET])] -= weight
    for node in range(slopes.shape[0]):
        for c in range(outputs):
            change = -slopes[node, c] / (curvatures[node, c] + ridge)
            vectors[tree, node, c] = step * clip(change, -most_value, most_value)
    for r in range(n):
        add_to_margins(outputs, 1.0, vectors[tree, leaves[r, tree]], margins[r])

"""Kernels of boosted trees for classes: leaves that add to the margins of all classes.

In every kernel, besides the arrays of boosted_kernels.py, for 1 + K outputs (see class_scorer.py)
    margins  (W, R)     float32: the margin of each row of the ring for each output, R >= 1 + K
    vectors  (T, N, R)  what a leaf adds to the margins
    base     (R,)       the margins without trees
    m, p     (2, 1 + K), (n, 1 + K)  scratch: numbers of one row, probabilities of all
TARGET in `about` is the output of the row's class.
"""

from dualstream.solvers.jit import (
    F8,
    F8_2D,
    I8,
    RO_F8,
    RO_I4,
    RO_I8,
    Bytes,
    Floats,
    Indices,
    Ints,
    f8,
    i4,
    i8,
    kernel,
    types,
    u1,
    void,
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
    bin_among,
    count_row,
    limited_weight,
)
from dualstream.solvers.nonlinear.dense_columns import COLUMNS, Singles, count_features, dense_row
from dualstream.solvers.nonlinear.hashed_numbers import drawn_number
from dualstream.solvers.nonlinear.softmax import softmax, total_of
from dualstream.solvers.rows.scalar import clip

_F8_3D, _I4_2D = f8[:, :, ::1], i4[:, ::1]
_F4_2D, _U1_2D = types.float32[:, ::1], u1[:, ::1]


@kernel(void(F8, F8), inline=True, apart=True)
def add(more: Floats, out: Floats) -> None:
    """out += more, for all of `out`."""
    for c in range(out.shape[0]):
        out[c] += more[c]


@kernel(void(F8, F8, F8), inline=True, apart=True)
def multiply(numbers: Floats, factors: Floats, out: Floats) -> None:
    """out = numbers * factors."""
    for c in range(out.shape[0]):
        out[c] = numbers[c] * factors[c]


@kernel(void(types.float32[::1], F8), inline=True, apart=True)
def widened(row: Singles, out: Floats) -> None:
    """out (1 + K,): the first numbers of a row in single precision."""
    for c in range(out.shape[0]):
        out[c] = row[c]


@kernel(void(i8, f8, F8, types.float32[::1]), inline=True, apart=True)
def add_to_margins(outputs: int, sign: float, more: Floats, row: Singles) -> None:
    """row += sign more, for the first numbers."""
    for c in range(outputs):
        row[c] += sign * more[c]


@kernel(
    types.UniTuple(i8, 2)(
        RO_I8, RO_I4, RO_F8, RO_I8, RO_F8, i8, F8_2D, i8, i8, i8, I8, I8, I8, I8, F8, F8,
        _F4_2D, _U1_2D, F8_2D, _F4_2D, _U1_2D, F8_2D, I8, _I4_2D, F8_2D, _I4_2D, _F8_3D, F8,
    )
)  # fmt: skip
def learn_rows(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    class_ids: Ints,
    weights: Floats,
    start: int,
    scores: Floats,
    window: int,
    first_tree: int,
    renewal: int,
    keys: Ints,
    columns: Ints,
    counts: Ints,
    k: Ints,
    f: Floats,
    x: Floats,
    rows: Singles,
    codes: Bytes,
    about: Floats,
    margins: Singles,
    leaves: Bytes,
    edges: Floats,
    n_edges: Ints,
    feature: Indices,
    threshold: Floats,
    left: Indices,
    vectors: Floats,
    base: Floats,
) -> tuple[int, int]:
    """As boosted_kernels.learn_rows; scores (n, 1 + K) are margins, class_ids (n,) the classes."""
    for i in range(start, weights.shape[0]):
        begin, end = indptr[i], indptr[i + 1]
        learns = weights[i] > 0.0
        if learns:
            if k[ROWS] < window and k[ROWS] == rows.shape[0]:
                return i, NEEDS_ROW
            if count_features(indices, begin, end, rows.shape[1], keys, columns, counts, k) == 0:
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
        for j in range(k[COLUMNS]):
            rows[at, j] = x[j]
            codes[at, j] = bin_among(x[j], edges[j], n_edges[j])
        about[at, TARGET], about[at, WEIGHT] = 1 + class_ids[i], limited_weight(weights[i], k, f)
        for c in range(row_scores.shape[0]):
            margins[at, c] = row_scores[c]
        why = count_row(window, first_tree, renewal, k)
        if why != DONE:
            return i + 1, why
    return weights.shape[0], DONE


@kernel(
    void(
        RO_I8, RO_I4, RO_F8, F8_2D, I8, I8, I8, F8, _I4_2D, F8_2D, _I4_2D, _F8_3D, F8,
    )
)  # fmt: skip
def score_rows(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    scores: Floats,
    keys: Ints,
    columns: Ints,
    k: Ints,
    x: Floats,
    feature: Indices,
    threshold: Floats,
    left: Indices,
    vectors: Floats,
    base: Floats,
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


@kernel(void(F8_2D, i8, F8))
def class_weights(about: Floats, n: int, out: Floats) -> None:
    """out (R,), which is 0 before: the weight of each output's rows among the first n."""
    for r in range(n):
        out[int(about[r, TARGET])] += about[r, WEIGHT]


@kernel(void(i8, i8, F8))
def draw_contrast(seed: int, first: int, contrast: Floats) -> None:
    """contrast (1 + K,): drawn numbers from number `first` on."""
    for c in range(contrast.shape[0]):
        contrast[c] = drawn_number(seed, first + c)


@kernel(void(_F4_2D, F8_2D, _U1_2D, i8, i8, F8, _F8_3D, F8, F8_2D, F8_2D, F8, F8))
def contrast_slopes(
    margins: Singles,
    about: Floats,
    leaves: Bytes,
    n: int,
    tree: int,
    shift: Floats,
    vectors: Floats,
    contrast: Floats,
    m: Floats,
    p: Floats,
    slopes: Floats,
    curvatures: Floats,
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


@kernel(void(f8, F8, F8, F8), inline=True, apart=True)
def add_derivatives(weight: float, p: Floats, slopes: Floats, curvatures: Floats) -> None:
    """Add weight p and weight p (1 - p)."""
    for c in range(p.shape[0]):
        share = weight * p[c]
        slopes[c] += share
        curvatures[c] += share * (1.0 - p[c])


@kernel(void(_F4_2D, F8_2D, _U1_2D, i8, i8, f8, f8, f8, F8_2D, F8_2D, F8_2D, _F8_3D))
def fill_leaves(
    margins: Singles,
    about: Floats,
    leaves: Bytes,
    n: int,
    tree: int,
    step: float,
    ridge: float,
    most_value: float,
    p: Floats,
    slopes: Floats,
    curvatures: Floats,
    vectors: Floats,
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

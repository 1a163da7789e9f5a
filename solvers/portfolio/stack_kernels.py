"""Kernels of the stack: a member that combines the other members by their scores.

With h_k the calibrated log odds of member k, within [-6, 6] (0 for a member that is not active or
has no score), and h = 1 last, the stack scores w.h and learns w by full online Newton steps on the
log-loss with forgetting 0.9995:

    b = c max(p (1 - p), 0.001),  kappa = b / (0.9995 + b h.P h)
    P <- (P - kappa (P h)(P h)') / 0.9995
    w <- w + tau P h,  tau the dual step along that direction (losses/loss_kernels.py)

P starts at I / 10 and w at the mean of the members. For numbers, h_k is the distance of the
member's prediction from the mean of the targets in units S of the portfolio's error, and the loss
is Huber's with delta S: a row counts with its weight times min(1, S / |error|) (P. Huber, "Robust
statistics", 1981, section 7.8); P starts at I. P is halved while its trace is more than 1000 per
entry, as forgetting would let it grow for ever where no row says anything.

In every kernel, for K members
    stack   (K + 4, K + 1)  rows of P, then W, H and PH below; no rows without a stack
"""

from dualstream.solvers.jit import F8, F8_2D, RO_I8_2D, kernel
from dualstream.solvers.losses.loss_kernels import logistic_root
from dualstream.solvers.rows.scalar import clip, sigmoid

ROLE, BASE = range(2)
MEMBER, PRIOR, STACK = range(3)
MAX_INPUT = 6.0
_MOST_NUMBER = 50.0
"""Limit of an input for numbers."""
_HEAVIEST = 1e6
"""Weight that a heavier row counts with: P would lose all its digits."""

MAX_P, MAX_W = 1e6, 1e100
"""More than any entry of P, whose trace is limited, and of w. Larger ones ruin a stack for good."""

_FORGETTING, _LEAST_CURVATURE, _MOST_TRACE = 0.9995, 1e-3, 1e3


@kernel
def start_stack(variance: float, stack: F8_2D) -> None:
    """P = variance I."""
    size = stack.shape[1]
    for a in range(size):
        for b in range(size):
            stack[a, b] = variance if a == b else 0.0


@kernel(inline=True)
def stack_score(stack: F8_2D) -> float:
    """w.h for the inputs H."""
    size = stack.shape[1]
    score = 0.0
    for a in range(size):
        score += stack[size, a] * stack[size + 1, a]
    return score


@kernel(inline=True)
def bend_stack(curvature: float, stack: F8_2D) -> float:
    """Add b h h' to the inverse of P, with forgetting; sets PH = P h, and returns h.PH."""
    size = stack.shape[1]
    inputs, product = stack[size + 1], stack[size + 2]
    for b in range(size):
        product[b] = 0.0
    for a in range(size):
        for b in range(size):
            product[b] += inputs[a] * stack[a, b]
    square = trace = 0.0
    for a in range(size):
        square += inputs[a] * product[a]
    square = max(square, 0.0)
    gain = curvature / (_FORGETTING + curvature * square)
    for a in range(size):
        share = gain * product[a]
        for b in range(size):
            stack[a, b] = (stack[a, b] - share * product[b]) / _FORGETTING
        trace += stack[a, a]
    if trace > _MOST_TRACE * size:
        for a in range(size):
            for b in range(size):
                stack[a, b] *= 0.5
    left = 1.0 / (_FORGETTING + curvature * square)
    for b in range(size):
        product[b] *= left
    return square * left


@kernel(inline=True)
def learn_class(y: float, c: float, stack: F8_2D) -> None:
    """Learn a row's label y (-1 or 1) of weight c for the inputs H."""
    c = min(c, _HEAVIEST)
    size = stack.shape[1]
    score = clip(stack_score(stack), -40.0, 40.0)
    p = sigmoid(score)
    square = bend_stack(c * max(p * (1.0 - p), _LEAST_CURVATURE), stack)
    _, dual = logistic_root(y * score, c * square)
    for a in range(size):
        stack[size, a] += c * y * dual * stack[size + 2, a]


@kernel(inline=True)
def learn_number(target: float, c: float, stack: F8_2D) -> None:
    """Learn a target of weight c, as the inputs H in units of S from the mean."""
    c = min(c, _HEAVIEST)
    size = stack.shape[1]
    error = target - stack_score(stack)
    c /= max(1.0, abs(error))
    bend_stack(c, stack)
    for a in range(size):
        stack[size, a] += c * error * stack[size + 2, a]


@kernel(inline=True, inner=False)
def stack_among(roles: RO_I8_2D) -> int:
    """The index of the stack among the members, -1 for none."""
    for j in range(roles.shape[0]):
        if roles[j, ROLE] == STACK:
            return j
    return -1


@kernel(inline=True)
def set_class_inputs(
    index: int, m: F8, is_active: F8, a: F8, b: F8, outputs: F8, stack: F8_2D
) -> None:
    """Set H to the calibrated log odds of the members but `index`; and its m and outputs."""
    size = stack.shape[1]
    inputs = stack[size + 1]
    for j in range(size - 1):
        inputs[j] = 0.0
        if j != index and is_active[j] > 0.0 and m[j] == m[j]:
            inputs[j] = clip(a[j] * m[j] + b[j], -MAX_INPUT, MAX_INPUT)
    inputs[size - 1] = 1.0
    m[index] = clip(stack_score(stack), -40.0, 40.0)
    outputs[index] = sigmoid(clip(a[index] * m[index] + b[index], -12.0, 12.0))


@kernel(inline=True)
def set_number_inputs(
    index: int, mean: float, scale: float, m: F8, is_active: F8, outputs: F8, stack: F8_2D
) -> float:
    """Set H to the distances of the members' predictions from the mean; the stack's prediction."""
    size = stack.shape[1]
    inputs = stack[size + 1]
    for j in range(size - 1):
        inputs[j] = 0.0
        if j != index and is_active[j] > 0.0 and m[j] == m[j]:
            inputs[j] = clip((outputs[j] - mean) / scale, -_MOST_NUMBER, _MOST_NUMBER)
    inputs[size - 1] = 0.0
    return float(mean + scale * stack_score(stack))

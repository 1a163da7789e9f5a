"""The ADULT row of Table 3.2 of Lee's thesis: ASSET and ASSET* with 512 landmarks."""

from typing import Any

import numpy as np

from load_tests.paper_tables import data
from load_tests.paper_tables.report import Printed, Section, table
from solvers import Batch, make_learner
from solvers.features.nystroem import Nystroem

RUNS = 5
EPOCHS = 30
SEED = 50
TRAIN, VALIDATION, COMPONENTS = 32_561, 8_140, 512
GAMMA, LAMBDA = 0.001, 1.0 / (1000.0 * TRAIN)
SD = 0.06
"""Printed for ASSET*; ASSET has none."""

ABOUT = f"""\
Lee, "Optimization methods for regularized convex formulations in machine learning" (2011),
section 3.4: Adult's training and test rows together, split at random into {TRAIN:,} to train,
{VALIDATION:,} to validate (not needed here) and the rest to test; s = {COMPONENTS}, λ = 1 / (1000
m), γ = 1 / (2σ²) = {GAMMA}. Test error in percent, mean and deviation over {RUNS} splits, after
{EPOCHS} epochs, average of the second half of them; the landmarks are the first {COMPONENTS} rows
of the split, the intercept a last coordinate of 1. The thesis stops where the error is that of
CPNY, says nothing of the split's seed, and averages 100 steps.

The thesis prints ± {SD} for ASSET* and nothing for ASSET, which is judged by the same. It can
hardly be over splits: the error on so few test rows alone has a deviation of 0.4 points, so that
this width tells no two splits apart, and a "yes" or "no" here is in part luck. The row "one pass"
is the online case, of which the thesis prints no figure for ADULT. Times are not compared: other
machine, other stopping rule.
"""


def run() -> Section:
    both = Batch.concat([data.adult(), data.adult_test()])
    half = EPOCHS * TRAIN // 2
    kinds: dict[str, tuple[int, dict[str, Any], Printed | None]] = {
        "ASSET": (EPOCHS, {"step": "sqrt", "average": {"from": half}}, Printed(15.06, SD, 2, 2)),
        "ASSET*": (
            EPOCHS,
            {"step": "strongly_convex", "average": {"from": half}},
            Printed(15.07, SD, 2, 2),
        ),
        "ASSET, one pass": (1, {"step": "sqrt", "average": {"from": TRAIN // 2}}, None),
    }
    errors: dict[str, list[float]] = {name: [] for name in kinds}
    for split in range(RUNS):
        rng = np.random.default_rng([SEED, split])
        order = rng.permutation(len(both))
        rows, rest = both.take(order[:TRAIN]), both.take(order[TRAIN + VALIDATION :])
        mapping = Nystroem(both.dim, COMPONENTS, GAMMA)
        mapping.set_landmarks(rows[:COMPONENTS])
        train, test = mapping.peek(rows), mapping.peek(rest)
        for name, (epochs, fields, _) in kinds.items():
            learner = make_learner(
                {
                    "algorithm": "asset",
                    "lambda": LAMBDA,
                    "features": {"kind": "indexed", "dim": COMPONENTS},
                }
                | fields
            )
            for _ in range(epochs):
                learner.learn(train.take(rng.permutation(TRAIN)))
            wrong = (learner.predict(test) >= 0.0) != (test.labels > 0.0)
            errors[name].append(100.0 * float(np.mean(wrong)))
    lines, met = [], 0
    for name, (_, _, printed) in kinds.items():
        mean, sd = np.mean(errors[name]), np.std(errors[name], ddof=1)
        said, shown = "not printed", "-"
        if printed:
            off = float(mean) - printed.mean
            shown = f"{printed.mean:.2f}" if name == "ASSET" else str(printed)
            is_met = printed.is_met_unrounded(float(mean))
            met += is_met
            said = "yes" if is_met else f"no: off by {off:+.2f} points; a split varies by {sd:.2f}"
        lines.append((name, shown, f"{mean:.2f} ± {sd:.2f}", said))
    body = f"{ABOUT}\n{table(('learner', 'thesis', 'ours', 'reproduced'), lines)}"
    return Section("Thesis, Table 3.2: ASSET on ADULT", body, f"{met} of 2 errors")

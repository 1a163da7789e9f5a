"""ASPDC, Figures 1 to 3: gaps against epochs and seconds, and the paper's claims."""

import math
import time
from typing import Any

import numpy as np

from dualstream.solvers import Batch
from dualstream.solvers.jit import Floats
from dualstream.solvers.losses.loss_table import make_loss
from dualstream.solvers.offline.method import Start
from dualstream.solvers.offline.method_registry import method_of
from dualstream.solvers.offline.options import with_defaults
from dualstream.solvers.offline.problem import Problem
from load_tests.offline import unit_rows
from load_tests.paper_tables import data
from load_tests.paper_tables.report import Section, plt, save, table

LARGE = (1e-1, 1e-2, 1e-3, 1e-4)
SMALL = (1e-6, 1e-7, 1e-8)
TABLE_6 = {"a9a": 5.1, "ijcnn1": 2.7}
GAPS = (1e-3, 1e-4, 1e-6, 1e-8)
MAX_EPOCHS = 200
PAPERS: dict[str, Any] = {"visits": "random"}
STAGES = PAPERS | {"stage_epochs": 2}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "SDCA": ("sdca", PAPERS),
    "SPDC": ("spdc", PAPERS),
    "ASPDC": ("aspdc", PAPERS),
    "ASDCA": ("asdca", STAGES),
    "ASPDC-i": ("aspdc_i", STAGES),
    "SVRG": ("svrg", PAPERS),
    "SDCA, permuted": ("sdca", {}),
    "ASDCA, permuted": ("asdca", {}),
}
AT_LARGE = ("SDCA", "SPDC", "ASPDC", "SDCA, permuted")
AT_SMALL = ("SDCA", "SPDC", "ASDCA", "ASPDC-i", "ASDCA, permuted")

ABOUT = """\
Smooth hinge, rows [x, 1] scaled to norm 1, as in the authors' program. As in the paper rows are
drawn with replacement, and a stage of ASDCA and ASPDC-i is 2n steps; "permuted" are our defaults,
with a new random order each epoch and stages of n steps. ASPDC needs lambda >= 4 / n, which a9a
does not meet at 1e-4, although the paper's Fig. 1 shows it. The second table has epochs until the
gap is at most 1e-3/1e-4/1e-6/1e-8, `-` if {most} are not enough.

The paper's tables contradict its Figure 2. At lambda = 1e-6, seconds to a gap of 1e-4 (Table 5)
over seconds of a pass (Table 6) are epochs of ASDCA / SPDC / ASPDC-i: 35 / 26 / 51 on a9a,
33 / 38 / 67 on ijcnn1 and 40 / 73 / 117 on covtype. By them ASPDC-i needs the most epochs on all
three sets.
"""

Curve = Floats
"""(epochs, 3): CPU seconds so far, gap, primal after each epoch."""

Curves = dict[tuple[str, float, str], Curve]
Claim = tuple[str, str, str]


def run() -> Section:
    ijcnn1 = data.signed(data.libsvm("ijcnn1", 22), {1.0})
    sets = {"a9a": unit_rows(data.adult()), "ijcnn1": unit_rows(ijcnn1)}
    curves = {
        (name, rho, label): curve
        for name, batch in sets.items()
        for rho in LARGE + SMALL
        for label in (AT_LARGE if rho in LARGE else AT_SMALL)
        if (curve := follow(batch, label, rho)) is not None
    }
    for name, batch in sets.items():
        result = follow(batch, "SVRG", 1e-6)
        assert result is not None
        curves[name, 1e-6, "SVRG"] = result
    claims = check(curves, list(sets))
    body = "\n".join(
        (
            ABOUT.format(most=MAX_EPOCHS),
            table(("claim", "found", "holds"), claims),
            epochs(curves),
            plot(curves, list(sets)),
        )
    )
    holding = sum(claim[2] == "yes" for claim in claims)
    return Section("ASPDC, Figures 1 to 3", body, f"{holding} of {len(claims)} claims hold")


def follow(batch: Batch, label: str, rho: float) -> Curve | None:
    """The curve of a method; None where it refuses the problem."""
    name, options = METHODS[label]
    if name == "aspdc" and rho < 4.0 / len(batch):
        return None
    problem = Problem(batch, batch.labels, make_loss("smooth_hinge"), rho, "none")
    method = method_of(name)
    chosen = with_defaults(name, options)
    began = time.thread_time()
    at_work = method.begin(problem, Start(), chosen, np.random.default_rng(0))
    spent = time.thread_time() - began
    curve = []
    for _ in range(MAX_EPOCHS):
        began = time.thread_time()
        at_work.advance()
        spent += time.thread_time() - began
        bounds = at_work.bounds()
        curve.append((spent, bounds.gap, bounds.primal))
        if bounds.gap <= GAPS[-1] / 10:
            break
    return np.array(curve)


def first_at(curve: Curve, gap: float) -> int | None:
    """The epoch after which the gap is first at most this one."""
    passes = np.flatnonzero(curve[:, 1] <= gap)
    return int(passes[0]) + 1 if len(passes) else None


def steps_of(curve: Curve) -> str:
    return "/".join(str(first_at(curve, gap) or "-") for gap in GAPS)


def epochs(curves: Curves) -> str:
    lines = [
        (
            name,
            f"{rho:g}",
            *(steps_of(curves[name, rho, m]) if (name, rho, m) in curves else "" for m in METHODS),
        )
        for name, rho in dict.fromkeys((name, rho) for name, rho, _ in curves)
    ]
    return table(("rows", "lambda", *METHODS), lines)


def pass_of(curve: Curve) -> float:
    """CPU seconds of a pass: the median."""
    return float(np.median(np.diff(curve[:, 0], prepend=0.0)))


def check(curves: Curves, sets: list[str]) -> list[Claim]:
    """Each claim of the paper, our result, and whether the claim holds."""
    claims = []
    for name in sets:
        claims += of_large_lambda(curves, name)
        claims += [
            of_epochs(curves, name, rho, rival, gap)
            for rho in SMALL
            for rival in ("SPDC", "ASDCA")
            for gap in (1e-4, 1e-6)
        ]
        claims += of_svrg_and_passes(curves, name)
    return claims


def of_large_lambda(curves: Curves, name: str) -> list[Claim]:
    spdc, aspdc, sdca = (curves[name, 1e-2, label] for label in ("SPDC", "ASPDC", "SDCA"))
    at = first_at(spdc, 1e-6) or len(spdc)
    ratio = spdc[at - 1, 1] / aspdc[min(at, len(aspdc)) - 1, 1]
    below = f"{ratio:.1f} times below where SPDC's is 1e-6"
    a, b = first_at(aspdc, 1e-6) or 0, first_at(sdca, 1e-6) or 0
    where = f"{name}, 0.01: ASPDC"
    return [
        (f"{where}'s gap is 100 times below SPDC's after as many epochs", below, yes(ratio >= 100)),
        (
            f"{where} and SDCA need the same epochs",
            f"{a} and {b} epochs to 1e-6",
            yes(abs(a - b) <= 1),
        ),
    ]


def of_epochs(curves: Curves, name: str, rho: float, rival: str, gap: float) -> Claim:
    """Far fewer: two thirds of them, or less."""
    mine, theirs = (first_at(curves[name, rho, label], gap) for label in ("ASPDC-i", rival))
    holds = 1.5 * (mine or math.inf) <= (theirs or MAX_EPOCHS + 1)
    claim = f"{name}, {rho:g}: ASPDC-i needs far fewer epochs than {rival} to {gap:g}"
    return claim, f"{mine or '-'} and {theirs or '-'}", yes(holds)


def of_svrg_and_passes(curves: Curves, name: str) -> list[Claim]:
    at_hand = [curve for (of, rho, _), curve in curves.items() if (of, rho) == (name, 1e-6)]
    least = min(float(curve[:, 2].min()) for curve in at_hand)
    ours, svrg, spdc = (curves[name, 1e-6, label] for label in ("ASPDC-i", "SVRG", "SPDC"))
    at = min(30, len(ours), len(svrg)) - 1
    a, b = ours[at, 2] - least, svrg[at, 2] - least
    excess = f"{a:.1e} and {b:.1e} above the best found after {at + 1} epochs"
    ratio = pass_of(spdc) / pass_of(ours)
    claim = f"{name}, 1e-06: a pass of SPDC takes {TABLE_6[name]} times that of ASPDC-i (Table 6)"
    return [
        (f"{name}, 1e-06: ASPDC-i's primal falls faster than SVRG's", excess, yes(a < b)),
        (claim, f"{ratio:.1f} times", yes(ratio >= TABLE_6[name] / 1.5)),
    ]


def yes(holds: bool) -> str:
    return "yes" if holds else "**no**"


def plot(curves: Curves, sets: list[str]) -> str:
    shown = (1e-2, 1e-4, *SMALL)
    colours = {label: f"C{i}" for i, label in enumerate(METHODS)}
    out = []
    for axis in ("epochs", "seconds"):
        figure, axes = plt.subplots(2, len(shown), figsize=(3.4 * len(shown), 6), sharey=True)
        for line, name in zip(axes, sets, strict=True):
            for panel, rho in zip(line, shown, strict=True):
                for label in METHODS:
                    if (name, rho, label) not in curves:
                        continue
                    curve = curves[name, rho, label]
                    x = np.arange(1, len(curve) + 1) if axis == "epochs" else curve[:, 0]
                    panel.semilogy(x, curve[:, 1], label=label, color=colours[label], lw=1.2)
                panel.set_title(f"{name}, λ = {rho:g}")
                panel.set_ylim(1e-9, 2)
                panel.grid(alpha=0.3)
        for panel in axes[-1]:
            panel.set_xlabel("epochs" if axis == "epochs" else "CPU seconds")
        for line in axes:
            line[0].set_ylabel("gap")
        handles = {}
        for panel in axes.ravel():
            handles |= dict(zip(*panel.get_legend_handles_labels()[::-1], strict=True))
        figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(handles))
        figure.tight_layout(rect=(0, 0.06, 1, 1))
        out.append(save(figure, f"aspdc_{axis}"))
    return "\n".join(out)

"""python -m load_tests.regression [--peers] writes docs/internals/regression.md and its plot.

It also writes the table of numbers in docs/guides/nonlinear.md.

Without DUALSTREAM_DATA the streams that need it are left out. The peers' figures come from
peers.json; --peers measures them again and writes it.
"""

import platform
import sys
from collections.abc import Sequence

from dualstream import solvers
from load_tests.markdown import DOCS
from load_tests.measure import processors
from load_tests.regression import peers, plots, tables
from load_tests.regression.runs import seen, unseen
from load_tests.regression.standings import Standing, standing
from load_tests.regression.text import (
    ADDED,
    ALONE,
    CAVEATS,
    HEAD,
    LOSSES,
    MEMBERS,
    PLOT,
    RULE,
    SEEN,
    STREAMS,
    TRIED,
    TRIED_MORE,
    UNSEEN,
)
from load_tests.sections import with_section

GUIDE = DOCS / "guides/nonlinear.md"
NUMBERS = """\
The streams of [regression](../internals/regression.md). Below 1, `full` has the smaller error.
Times are CPU time to predict and learn a row in bulk, on {machine}. Written by
`DUALSTREAM_DATA=... python -m load_tests.regression`.
"""


def main() -> None:
    if "--peers" in sys.argv[1:]:
        peers.measure()
    versions, kept = peers.kept()
    standings = [standing(name, kept) for name in seen()]
    new = [standing(name, kept) for name in unseen()]
    both = [*standings, *new]
    head = HEAD.format(
        identity=solvers.numeric_identity(),
        python=platform.python_version(),
        packages=", ".join(f"{name} {version}" for name, version in versions.items()),
    )
    parts = (
        head,
        LOSSES.format(losses=tables.losses(both), worse=tables.worse(both)),
        RULE,
        MEMBERS.format(seen=len(standings), unseen=len(new)) + tables.members(standings, new),
        ADDED,
        TRIED + tables.tried(standings, new),
        TRIED_MORE,
        STREAMS.format(machine=processors()),
        PLOT,
        plots.ratios(standings, new, "ratios"),
        SEEN.format(count=len(standings)),
        of_some(standings),
        UNSEEN,
        of_some(new),
        ALONE,
        tables.alone(both),
        CAVEATS,
    )
    (DOCS / "internals/regression.md").write_text("\n".join(parts))
    numbers = [
        *NUMBERS.format(machine=processors()).splitlines(),
        "",
        *tables.guide(both).splitlines(),
    ]
    GUIDE.write_text(with_section(GUIDE.read_text(), "Errors of numbers", numbers))


def of_some(standings: Sequence[Standing]) -> str:
    return "\n".join(
        (
            tables.summary(standings),
            tables.overview(standings),
            "Against each of the others: on how many streams ours has the smaller error, and the\n"
            "median of our error over theirs.\n",
            tables.duels(standings),
            "MAE of all, the smallest in bold:\n",
            tables.everything(standings),
        )
    )


main()

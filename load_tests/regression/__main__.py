"""python -m load_tests.regression [--peers] writes docs/internals/regression.md and its plot.

Without DUALSTREAM_DATA the streams that need it are left out. The peers' figures come from
peers.json; --peers measures them again and writes it.
"""

import platform
import sys
from collections.abc import Sequence

from dualstream import solvers
from load_tests.markdown import DOCS
from load_tests.regression import peers, plots, tables
from load_tests.regression.runs import seen, unseen
from load_tests.regression.standings import Standing, standing
from load_tests.regression.text import (
    ALONE,
    CAVEATS,
    HEAD,
    MEMBERS,
    PLOT,
    RULE,
    SEEN,
    STREAMS,
    TRIED,
    TRIED_MORE,
    UNSEEN,
)


def main() -> None:
    if "--peers" in sys.argv[1:]:
        peers.measure()
    versions, kept = peers.kept()
    known = [standing(name, kept) for name in seen()]
    new = [standing(name, kept) for name in unseen()]
    head = HEAD.format(
        identity=solvers.numeric_identity(),
        python=platform.python_version(),
        packages=", ".join(f"{name} {version}" for name, version in versions.items()),
    )
    parts = (
        head,
        RULE,
        MEMBERS.format(seen=len(known), unseen=len(new)) + tables.members(known, new),
        TRIED + tables.tried(known, new),
        TRIED_MORE,
        STREAMS,
        PLOT,
        plots.ratios(known, new, "ratios"),
        SEEN.format(count=len(known)),
        of_some(known),
        UNSEEN,
        of_some(new),
        ALONE,
        tables.alone([*known, *new]),
        CAVEATS,
    )
    (DOCS / "internals/regression.md").write_text("\n".join(parts))


def of_some(standings: Sequence[Standing]) -> str:
    return "\n".join(
        (
            tables.summary(standings),
            tables.overview(standings),
            "Against each of the others:\n",
            tables.duels(standings),
            "MAE of all, the smallest in bold:\n",
            tables.everything(standings),
        )
    )


main()

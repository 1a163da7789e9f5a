"""python -m load_tests.streams [--peers] writes docs/internals/streams.md and its plots.

The peers' figures come from peers.json. --peers measures those that .cache does not have, and
writes peers.json.
"""

import platform
import sys

from dualstream import solvers
from load_tests.markdown import DOCS
from load_tests.streams import inverted_labels as turned, late, plots, tables
from load_tests.streams.cases import HELD_OUT, PROTOCOL
from load_tests.streams.held_out import MADE, ORDERS
from load_tests.streams.peer_figures import kept, reference
from load_tests.streams.standings import Standing, standing
from load_tests.streams.text import (
    BEHIND,
    CURVES,
    CURVES_OTHERS,
    HEAD,
    LOSSES,
    OTHERS,
    REFERENCE_ONLY,
    THIRTEEN,
)


def main() -> None:
    if "--peers" in sys.argv[1:]:
        from load_tests.streams.run_peers import measure

        measure()
    versions, peers = kept()
    golden = reference()
    thirteen = [standing(case, peers, golden) for case in PROTOCOL.values()]
    others = [standing(case, peers, {}) for case in HELD_OUT.values()]
    head = HEAD.format(
        identity=solvers.numeric_identity(),
        python=platform.python_version(),
        packages=", ".join(f"{name} {version}" for name, version in versions.items()),
    )
    parts = (
        head,
        summary(thirteen, others),
        of_thirteen(thirteen, golden),
        of_others(others),
        "## Inverted labels\n\n" + turned.section(peers),
        "## Late labels\n\n" + late.section(peers),
    )
    (DOCS / "internals/streams.md").write_text("\n".join(parts))


def summary(thirteen: list[Standing], others: list[Standing]) -> str:
    return "\n".join(
        (
            f"## Summary\n\nOver the {len(thirteen)} reference streams:\n",
            tables.scores(thirteen),
            f"Over {len(others)} other streams:\n",
            tables.scores(others),
        )
    )


def of_thirteen(standings: list[Standing], golden: dict[str, object]) -> str:
    return "\n".join(
        (
            THIRTEEN,
            tables.overview(standings, golden),
            BEHIND,
            plots.behind(standings, "behind"),
            CURVES,
            plots.curves(standings, "curves"),
            LOSSES,
            tables.losses_of_ours(standings),
            "Percentage of errors of all:\n",
            tables.mistakes(standings),
            REFERENCE_ONLY,
            tables.reference_only(standings),
        )
    )


def of_others(standings: list[Standing]) -> str:
    return "\n".join(
        (
            OTHERS,
            tables.overview(standings, {}),
            BEHIND,
            plots.behind(standings, "behind_others"),
            CURVES_OTHERS,
            plots.curves([s for s in standings if s.name in (*ORDERS, *MADE)], "curves_others"),
            LOSSES,
            tables.losses_of_ours(standings),
            "Percentage of errors of all:\n",
            tables.mistakes(standings),
        )
    )


main()

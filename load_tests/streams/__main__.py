"""python -m load_tests.streams [--page] [--all-peers] [--linear-peers]: docs/internals/streams.md.

It also writes the plots, and the tables of docs/guides/nonlinear.md. The peers' figures come from
comparison.json and peers.json. --all-peers measures the figures that comparison.json lacks.
--linear-peers runs the linear peers that .cache does not have, and writes peers.json. Whatever has
times of our models is measured again: the comparison, the members and flat rows. --page leaves that
out.
"""

import platform
import sys
from collections.abc import Mapping

from dualstream import solvers
from load_tests.markdown import DOCS
from load_tests.sections import section
from load_tests.streams import (
    comparison,
    comparison_text as words,
    delayed,
    flat_rows,
    guide,
    inverted_labels as turned,
    late,
    peer_comparison,
    plots,
    tables,
)
from load_tests.streams.cases import HELD_OUT, PROTOCOL
from load_tests.streams.held_out import MADE, ORDERS
from load_tests.streams.peer_figures import kept, reference
from load_tests.streams.standings import Standing, standing
from load_tests.streams.text import (
    BEHIND,
    CURVES,
    CURVES_OTHERS,
    HEAD,
    LINEAR,
    LOSSES,
    OTHERS,
    REFERENCE_ONLY,
    THIRTEEN,
)

PAGE = DOCS / "internals/streams.md"


def main() -> None:
    if "--all-peers" in sys.argv[1:]:
        peer_comparison.measure()
    if "--linear-peers" in sys.argv[1:]:
        from load_tests.streams.run_peers import measure

        measure()
    only_page = "--page" in sys.argv[1:]
    if not only_page:
        comparison.measure()
    all_models = of_all_models(with_costs=not only_page)
    versions, peers = kept()
    golden = reference()
    thirteen = [standing(case, peers, golden) for case in PROTOCOL.values()]
    others = [standing(case, peers, {}) for case in HELD_OUT.values()]
    head = HEAD.format(identity=solvers.numeric_identity(), python=platform.python_version())
    parts = (
        head,
        all_models,
        LINEAR.format(packages=listed(versions)),
        summary(thirteen, others),
        of_thirteen(thirteen, golden),
        of_others(others),
        "### Inverted labels\n\n" + turned.section(peers),
        "### Late labels\n\n" + late.section(peers),
        "### Late labels of the default\n\n" + delayed.section(),
        f"## {flat_rows.TITLE}\n\n" + (kept_flat_rows() if only_page else flat_rows.section()),
    )
    PAGE.write_text("\n".join(parts))


def kept_flat_rows() -> str:
    """The section of the page, which has times."""
    return section(PAGE.read_text(), flat_rows.TITLE).strip("\n") + "\n"


def of_all_models(*, with_costs: bool) -> str:
    """The comparison of all models; writes the guide's tables from the same figures."""
    stored = peer_comparison.kept()
    results = stored.figures
    sizes, lasts = comparison.described(stored)
    guide.write(results, sizes, stored.ours["machine"], with_costs=with_costs)
    seconds = peer_comparison.SECONDS
    about = {
        "ours": stored.ours["machine"],
        "machine": stored.machine,
        "packages": listed(stored.versions),
    }
    return "".join(
        (
            words.AHEAD + comparison.ahead(results) + "\n",
            words.AHEAD_IN_LOSS + comparison.ahead_in_log_loss(results) + "\n",
            words.AHEAD_LATE + delayed.losses() + "\n",
            words.OVERVIEW.format(seconds=seconds),
            comparison.overview(results, sizes, lasts) + "\n",
            words.PEERS.format(**about),
            words.TEMPORAL + comparison.temporal(results, lasts) + "\n",
            words.MEANS + comparison.means(results) + "\n",
            plots.cost(results) + "\n",
            words.STOPPED.format(seconds=seconds) + comparison.stopped(results) + "\n",
            words.CALIBRATION + comparison.calibration(results) + "\n",
            words.RARE + comparison.rare(results) + "\n",
            words.COLD + comparison.cold_start(results) + "\n",
            words.RECOVERY + comparison.recovery(results, sizes),
        )
    )


def listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def summary(thirteen: list[Standing], others: list[Standing]) -> str:
    return "\n".join(
        (
            f"### Summary\n\nOver the {len(thirteen)} reference streams:\n",
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

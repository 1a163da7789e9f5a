"""Sections of RESULTS.md: a benchmark that runs alone keeps the other sections."""

from load_tests.measure import HEADING, Row
from load_tests.sections import more_cpu, section, with_head, with_section

BEFORE = "# Measured\n\n| a |\n\n## One\n\nold\n\n## Two\n\nkept\n"


def test_section_takes_the_place_of_the_old_one():
    after = with_section(BEFORE, "One", ["new", "", "more"])
    assert after == "# Measured\n\n| a |\n\n## One\n\nnew\n\nmore\n\n## Two\n\nkept\n"


def test_last_section_is_replaced_to_the_end():
    after = with_section(BEFORE, "Two", ["new"])
    assert after == "# Measured\n\n| a |\n\n## One\n\nold\n\n## Two\n\nnew\n"


def test_new_section_comes_last_and_title_is_no_prefix():
    after = with_section(BEFORE, "On", ["new"])
    assert after == BEFORE + "\n## On\n\nnew\n"


def test_the_head_is_replaced_before_the_first_section():
    after = with_head("# Title\n\nold\n\n## One\n\ntext\n", ["new", "", "more"])
    assert after == "# Title\n\nnew\n\nmore\n\n## One\n\ntext\n"
    assert with_head("# Title\n", ["new"]) == "# Title\n\nnew\n"


def test_rows_that_take_more_cpu_against_their_peer_are_named():
    def table(*ratios: float) -> list[str]:
        rows = [
            Row(f"row {n}", "rows/s", [1.0], "peer", [2.0], cpu=(5.0 * ratio, 5.0))
            for n, ratio in enumerate(ratios)
        ]
        return [HEADING, *(row.markdown() for row in rows)]

    assert len({line.count("|") for line in "\n".join(table(1.0)).splitlines()}) == 1
    text = with_section(with_section(BEFORE, "Two", table(1.0, 2.0)), "Three", table(0.1, 0.1))
    assert list(more_cpu(section(text, "Two"), table(1.09, 2.3, 9.0))) == [
        "MORE CPU: row 1: 2.300x of the peer's, 2.000x before"
    ]
    assert list(more_cpu(section(text, ""), table(9.0))) == []

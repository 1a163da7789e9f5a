"""Sections of RESULTS.md: a benchmark that runs alone keeps the other sections."""

from load_tests.sections import with_head, with_section

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

"""The report is one page that needs nothing else."""

from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from dualstream.service.compare.file_rows import FileRows
from dualstream.service.compare.line_chart import Line, line_chart, nice_step
from dualstream.service.compare.options import Options
from dualstream.service.compare.prepare import prepare
from dualstream.service.compare.report import report_of
from dualstream.service.compare.result import result_of
from dualstream.service.compare.tables import figures_table, parts_table
from tests.service.compare.support import read, samples, written


class Page(HTMLParser):
    """Tags and attributes of a page; fails if a tag is not closed."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.sources += [value for name, value in attributes if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_the_page_has_all_figures_and_no_scripts(tmp_path, task, monkeypatch):
    monkeypatch.setattr("dualstream.service.compare.peers.find_spec", lambda name: None)
    got = read(written(tmp_path, samples(400, task=task)), time="at")
    got = FileRows(got.spec | {"algorithm": "sgd"}, got.rows, got.columns, times=got.times)
    run, notes = prepare(got, Options(specs=({"algorithm": "sgd"},)))
    run.notes += notes
    run.go()
    result = result_of(run, got, Options(), "<rows> & more.csv")
    text = report_of(result)
    page = Page(text)
    assert page.sources == [] and "script" not in page.tags and "url(" not in text
    assert page.tags.count("polyline") == 4 + 1  # the gain is that over the other learner
    assert "&lt;rows&gt; &amp; more.csv" in text and "<rows>" not in text
    assert "prefers-color-scheme: dark" in text
    for heads, rows in (figures_table(result), parts_table(result)):
        for cell in (*heads, *(cell for row in rows for cell in row)):
            assert f">{cell}</t" in text
    assert all(sentence in text for sentence in result["conclusions"])
    assert ("clipped at 10 times" in text) == (task == "regression")
    part = parts_table(result)[1][0]
    assert part[1] == "2024-01-01 00:00" and part[-1] == "equal"


def test_a_run_without_compared_rows_has_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr("dualstream.service.compare.peers.find_spec", lambda name: None)
    got = read(written(tmp_path, samples(100)))
    run, _ = prepare(got, Options())
    text = report_of(result_of(run, got, Options(), "rows.csv"))
    assert "Nothing is compared yet." in text and "polyline" not in Page(text).tags


def test_lines_are_where_their_values_are():
    line = Line("a & b", "red", np.array([0.0, 50.0, 100.0]), np.array([0.0, 30.0, 10.0]))
    text = line_chart("Errors", 100, [line], [50], "")
    svg = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    points = svg.find("polyline").get("points").split()
    (x0, y0), (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in points)
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert (y0 - y2) / (y0 - y1) == pytest.approx(1 / 3, abs=0.01)
    assert "a &amp; b" in text
    labels = [one.text for one in svg.findall("text")]
    assert labels == ["0", "10", "20", "30", "0", "20", "40", "60", "80", "100"]


def test_steps_are_1_2_and_5():
    steps = {0.0: 1.0, 0.3: 0.5, 1.0: 1.0, 1.1: 2.0, 4.0: 5.0, 7.0: 10.0, 2_300.0: 5_000.0}
    for least, step in steps.items():
        assert nice_step(least) == pytest.approx(step)

"""Reliability report: each run writes its own line."""

import pytest

from tests.chaos.report import Run, read, recorded
from tests.history import HistoryBroken, Report


@pytest.fixture
def place(tmp_path, monkeypatch):
    path = tmp_path / "RELIABILITY.md"
    monkeypatch.setenv("DUALSTREAM_RELIABILITY", str(path))
    return path


def test_each_run_replaces_its_own_line(place):
    for number in range(2):
        for store in ("SQLite", "Redis"):
            with recorded(Run("storm", store, seeds=[number])) as run:
                run.faults["kill -9"] += 3
                run.saw(Report(acknowledged=10 + number))
                run.recovery_s += [0.5, 2.0, 1.0]
    lines = read(place)
    assert list(lines) == [("storm", "Redis"), ("storm", "SQLite")]
    got = lines["storm", "SQLite"][2:9]
    assert got == ["11", "3: 3 kill -9", "0", "0", "1.00, 2.00", "1", "passed"]


def test_a_run_that_fails_says_so(place):
    problems = ["lost: k1 is not there", "duplicated: k2", "duplicated: k3", "the chain is broken"]
    with pytest.raises(HistoryBroken), recorded(Run("storm", "Redis")):
        raise HistoryBroken(Report(acknowledged=5, problems=problems))
    (cells,) = read(place).values()
    assert cells[2:6] == ["5", "-", "1", "2"] and cells[8] == "FAILED: HistoryBroken: 4 problems:"


def test_loss_that_is_expected_is_shown_and_is_no_failure(place):
    lost = Report(acknowledged=5, problems=["lost: k1"])
    with recorded(Run("power cut at everysec", "Redis", expects_loss=True)) as run:
        run.saw(lost)
    with recorded(Run("power cut at always", "Redis")) as run:
        run.saw(lost)
    outcomes = {cells[0]: cells[8] for cells in read(place).values()}
    assert outcomes == {"power cut at everysec": "passed", "power cut at always": "FAILED"}


def test_nothing_is_written_unasked(place, monkeypatch):
    monkeypatch.delenv("DUALSTREAM_RELIABILITY")
    with recorded(Run("storm", "Redis")):
        pass
    assert not place.exists()

"""The commands of docs/guides/tables.md on object stores, run as written against an S3 server."""

import re

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.docs.documents import DOCUMENTS, Shell, session
from tests.s3_server import running_s3

NAME = "docs/guides/tables.md"


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    with shell.server:
        yield shell


def test_the_commands_run_as_written(shell, tmp_path, monkeypatch):
    for day in ("2024-05-01", "2024-05-02"):
        folder = tmp_path / "buckets" / "events" / "clicks" / f"day={day}"
        folder.mkdir(parents=True)
        rows = {"clicked": [0, 1] * 20, "site": ["news", "mail"] * 20}
        parquet.write_table(pa.table(rows), folder / "part-0.parquet")
    with running_s3(tmp_path / "buckets") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        _, said = shell.run(session(DOCUMENTS[NAME]), tmp_path)
    for day in ("2024-05-01", "2024-05-02"):
        name = f"s3://events/clicks/day={day}/part-0.parquet"
        assert f"{name}: 40 rows learned" in said
        assert f"{name}: nothing new" in said
        assert re.search(rf"^ *{name} +40:[0-9a-f]{{16}} +40 +0 ", said, re.M), said

"""`dualstream infer`: the proposal fits the file, in every format, and says why."""

import csv
import gzip
import io
import json
import random
import sys
import tracemalloc
from contextlib import suppress
from datetime import datetime

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner, Result

from dualstream.client import FORMATS, BadInput, Client, NoRows, kind_of
from dualstream.service.cli import app
from dualstream.service.cli.rows import row_files
from dualstream.service.codecs import RowSchema, parse_body
from dualstream.service.features.infer.propose import propose
from dualstream.service.features.infer.sample import Sample, read_sample
from dualstream.solvers import InvalidSpec, resolve_spec
from examples import house_power
from tests.service.cli.inferred_tables import FILES, RIGHT, TASKS, column, rows_of, table
from tests.shell import run_script

MARKS = ["", "NA", "?", "NaN", "null", " ?"]


def as_csv(columns, delimiter=",", seed=0):
    """CSV with a mark of its own for the gaps of each column."""
    rng = random.Random(seed)
    marks = {name: rng.choice(MARKS) for name in columns}
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerow(columns)
    for row in rows_of(columns):
        writer.writerow([marks[n] if v is None else v for n, v in row.items()])
    return out.getvalue().encode()


def as_arrow(columns, times=True):
    typed = dict(columns)
    if times:
        parsed = [None if t is None else datetime.fromisoformat(t) for t in columns["time"]]
        typed["time"] = pa.array(parsed, pa.timestamp("ns", "UTC"))
    return pa.table(typed)


def written(columns, name, folder, seed):
    """The file, and its body and media type as the server gets them."""
    path = folder / name
    ending = name.partition(".")[2]
    sink = io.BytesIO()
    arrow = as_arrow(columns)
    with pa.ipc.new_stream(sink, arrow.schema) as writer:
        writer.write_table(arrow)
    body, kind = sink.getvalue(), FORMATS["arrow"]
    if ending == "parquet":
        parquet.write_table(arrow, path)
        return path, body, kind
    if ending == "feather":
        with pa.ipc.new_file(path, arrow.schema) as writer:
            writer.write_table(arrow)
        return path, body, kind
    if ending != "arrow":
        kind = kind_of(name)
        body = {
            "csv": lambda: as_csv(columns, seed=seed),
            "csv.gz": lambda: as_csv(columns, seed=seed),
            "tsv": lambda: as_csv(columns, "\t", seed=seed),
            "ndjson": lambda: "\n".join(map(json.dumps, rows_of(columns))).encode(),
            "json": lambda: json.dumps(rows_of(columns)).encode(),
        }[ending]()
    path.write_bytes(gzip.compress(body) if ending.endswith("gz") else body)
    return path, body, kind


NAMES = ["a.csv", "a.csv.gz", "a.tsv", "a.ndjson", "a.json", "a.arrow", "a.feather", "a.parquet"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", NAMES)
def test_the_proposal_fits_the_file(name, seed, tmp_path):
    columns, label = table(seed)
    path, body, kind = written(columns, name, tmp_path, seed)
    proposal = propose(read_sample(opened(path), 10_000))
    spec = proposal.spec
    parsed = parse_body(RowSchema(resolve_spec(spec)), kind, body, labelled=True)
    assert not parsed.errors and len(parsed.labels) == 150, parsed.errors[:2]
    assert (spec["task"], spec["columns"]["label"]) == (TASKS[seed], label)
    assert spec.get("labels") == (["no", "yes"] if label == "class" else None)
    assert spec["columns"]["id"] == "event_id" and len(parsed.rows.ids) == 150
    kinds = {name: choice.kind for name, choice in proposal.choices.items()}
    right = RIGHT | {label: "label", "event_id": "id"}
    assert kinds == right, {n: (k, right[n]) for n, k in kinds.items() if k != right[n]}
    assert proposal.warnings == []
    for name, choice in proposal.choices.items():
        assert choice.reason and proposal.seen[name].missing == columns[name].count(None), name


def opened(path):
    return row_files([str(path)], None, None)[0]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("form", ["ndjson", "csv"])
def test_files_of_the_demo_and_the_examples_fit(name, form, tmp_path):
    rows = FILES[name]()
    path = tmp_path / f"rows.{form}"
    if form == "csv":
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
        body = as_csv(columns)
    else:
        body = "\n".join(map(json.dumps, rows)).encode()
    path.write_bytes(body)
    label = house_power.TARGET if name == "house_power" else None
    spec = propose(read_sample(opened(path), 10_000), label).spec
    parsed = parse_body(RowSchema(resolve_spec(spec)), kind_of(str(path)), body, labelled=True)
    assert not parsed.errors and len(parsed.labels) == len(rows)


def spread(values, n=40):
    """A column of n rows that repeats the values."""
    return [values[i % len(values)] for i in range(n)]


def proposed(columns, label=None, task=None):
    return propose(Sample(rows_of(columns)), label, task)


YS = spread([0, 1, 1], 40)
KINDS = [
    ("ip", spread(["a", "b"]), "category", "2 distinct texts"),
    ("n", spread([None]), "ignore", "always missing"),
    ("n", spread([3]), "ignore", "constant: always '3'"),
    ("promo", spread(["X", None]), "category", "1 distinct text"),
    ("sure", spread(["Yes", "no"]), "boolean", "two values: Yes, no"),
    ("flag", spread(["1", "0"]), "boolean", "two values"),
    ("ones", spread([1, None]), "number", "whole numbers from 1 to 1"),
    ("day", spread(["2024-01-01", "2024-02-03"]), {"kind": "time"}, "days, ISO 8601"),
    ("day", spread(["01/02/2024", "03.04.2024"]), "ignore", "not ISO 8601: '01/02/2024'"),
    ("day", spread(["5/1/24", "12/31/23 10:00"]), "ignore", "not ISO 8601"),
    ("month", [f"{1980 + i}-01" for i in range(40)], "ignore", "not ISO 8601: '1980-01'"),
    ("host", spread(["10.0.0.1", "10.0.0.12"]), "category", "2 distinct texts"),
    ("release", spread(["1.2.3", "1.10.1"]), "category", "2 distinct texts"),
    ("ts", spread([1.7e12, 1.6e12]), "time", "milliseconds since 1970"),
    ("size", spread([1.7e12, 1.6e12]), "number", "whole numbers"),
    ("user_id", list(range(100, 140)), "ignore", "named as an id"),
    ("userId", spread([17, 4, 9]), "category", "named as a code, 3 distinct"),
    ("zip5", spread([17004, 40012, 90210]), "category", "named as a code, 3 distinct"),
    ("region-centroid-col", spread([17, 4, 9]), "number", "from 4 to 17"),
    ("number_of_rooms", random.Random(1).sample(range(99), 40), "number", "from 0 to 97"),
    ("any", list(range(1, 41)), "ignore", "numbers of the rows"),
    ("any", list(range(5, 45)), "number", "from 5 to 44"),
    ("year", list(range(40)), "number", "from 0 to 39"),
    ("people", [i * i for i in range(40)], "number", "from 0 to 1521"),
    ("n", spread([1.5, "error"]), "category", "2 distinct values"),
    ("iso", spread(["NA", "DE", "FR"]), "category", "3 distinct"),
    ("letter", spread(["NA", "abc"]), "category", "1 distinct"),
    ("tags", spread([["a", "b"], [], ["c"]]), "category", "a category for each entry"),
    ("vectors", spread([[[1.0]], [[2.0]]]), "ignore", "lists of lists"),
    ("big", spread([1e300, 1.0]), "category", "numbers beyond 1e100"),
    ("sample_weight", spread([0.5, 2]), "weight", "named as the weight"),
    ("weight", spread([70.5, 82.1]), "number", "from 70.5"),
    ("id", spread([1, 2]), "category", "named as a code"),
    ("id", list(range(40)), "id", "each is learned once"),
    ("id", [f"a\x00{i}" for i in range(40)], "ignore", "like an id"),
    ("id", ["x" * 300 + str(i) for i in range(40)], "ignore", "like an id"),
    ("note", spread(["a b c d e f", "g h i j k l"]), "category", "2 distinct texts"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values", "kind", "reason"), KINDS)
def test_a_column_gets_the_type_of_its_values(name, values, kind, reason):
    proposal = proposed({name: values, "other": spread([1.5, 2.5, 0.1, 7]), "y": YS})
    choice = proposal.choices[name]
    got = choice.kind["kind"] if isinstance(kind, dict) else choice.kind
    assert got == (kind["kind"] if isinstance(kind, dict) else kind), choice
    assert reason in choice.reason


LABELLED = [
    (["yes", "no", "no"], "binary", ["no", "yes"]),
    (["ham", "spam", "spam"], "binary", ["ham", "spam"]),
    ([" <=50K", " >50K", " >50K"], "binary", [" <=50K", " >50K"]),
    (["cat", "dog", "dog"], "binary", ["dog", "cat"]),  # the rarer one is positive
    (["2", "4", "2"], "binary", ["2", "4"]),
    ([2, 4, 2], "binary", ["2", "4"]),
    ([-1, 1], "binary", None),
    ([True, False], "binary", None),
    (["true", "FALSE"], "binary", None),
    ([0, 1, -1], "multiclass", None),
    ([1, 2, 3], "multiclass", None),
    ([10, 25, 70], "regression", None),
    ([0.5, 1.5], "regression", None),
    (["a", "b", "c"], "multiclass", None),
    ([1], "binary", None),
]


@pytest.mark.parametrize(("values", "task", "labels"), LABELLED)
def test_the_task_is_that_of_the_label(values, task, labels):
    columns = {"a": spread([0.5, 1.5, 2.5, 8.5]), "y": spread(values, 41)[1:]}
    spec = proposed(columns).spec
    assert (spec["task"], spec.get("labels")) == (task, labels)
    resolve_spec(spec)


def test_the_label_is_found_by_its_name_or_its_two_values_or_asked_for():
    a, two = spread([0.5, 1.5, 2.5, 8.5]), spread(["u", "v"])
    assert proposed({"Target": YS, "a": a, "two": two}).label.name == "Target"
    assert proposed({"gone": two, "a": a}).label.name == "gone"
    assert proposed({" class": two, "two": two, "a": a}).label.name == " class"
    assert proposed({" gone": two, "two": two, "a": a}, "gone").label.name == " gone"
    both = proposed({"label": YS, "clicked": YS, "a": a}).label
    assert both.name == "label" and "may also be clicked: name it as `label`" in both.reason
    with pytest.raises(BadInput, match=r"`label`. Two values: two, three. Few values: a\."):
        proposed({"two": two, "three": two, "a": a})
    with pytest.raises(BadInput, match="there is no column 'b'; the columns are two, a"):
        proposed({"two": two, "a": a}, "b")
    assert proposed({"two": two, "cafe\u0301": a}, "two").label.name == "two"
    with pytest.raises(BadInput, match="different texts in 40 rows and cannot be the label"):
        proposed({"two": two, "n": [f"t{i}" for i in range(40)]}, "n")
    with pytest.raises(BadInput, match="a binary one has two"):
        proposed({"two": two, "a": a}, "a", "binary")
    with pytest.raises(BadInput, match="not a regression"):
        proposed({"two": two, "a": a}, "two", "regression")
    with pytest.raises(BadInput, match="always missing"):
        proposed({"y": spread([None]), "a": a})
    assert proposed({"y": YS, "a": a}, task="multiclass").spec["task"] == "multiclass"


def test_what_gives_the_label_away_is_a_warning():
    ys = spread([0, 1, 1, 0, 1], 40)
    columns = {
        "won": ["w" if y else "l" for y in ys],
        "refunded": [f"2024-01-{i % 28 + 1:02d}" if y else None for i, y in enumerate(ys)],
        "fair": spread([1.5, 2.5, 3.5]),
        "each": [f"mail {i}" for i in range(40)],
        "y": [*ys[:39], None],
    }
    warnings = proposed(columns).warnings
    assert [line.split(";")[0] for line in warnings] == [
        "column 'won' alone gives the label in all 39 rows that have it",
        "whether column 'refunded' is missing gives the label in all 39 rows",
        "1 of 40 rows has no label and is refused",
    ]
    few = {name: values[:20] for name, values in columns.items()}
    assert proposed(few).warnings == []


def test_columns_that_are_refused_together_lose_one():
    columns = {
        "at": column("time", random.Random(0), 40),
        "at.hour.sin": spread([0.5, 0.25, 7]),
        "y": YS,
    }
    proposal = proposed(columns)
    assert proposal.choices["at"].kind == "time"
    reason = "does not fit: two columns give the feature 'at.hour.sin'"
    assert proposal.choices["at.hour.sin"][:2] == ("ignore", reason)
    body = json.dumps(rows_of(columns)).encode()
    parsed = parse_body(RowSchema(resolve_spec(proposal.spec)), None, body, labelled=True)
    assert not parsed.errors


def test_nested_objects_are_columns_and_null_for_one_hides_none():
    rows = [
        {"user": {"age": i * i}, "y": i % 2} if i % 3 else {"user": None, "y": 1} for i in range(40)
    ]
    body = json.dumps(rows).encode()
    sample = Sample([{"user.age": r["user"]["age"], "y": r["y"]} if r["user"] else r for r in rows])
    spec = propose(sample).spec
    parsed = parse_body(RowSchema(resolve_spec(spec)), None, body, labelled=True)
    assert not parsed.errors and len(parsed.rows.indices) > 20


def test_a_name_that_ends_with_a_star_is_no_pattern():
    spec = proposed({"a*": spread([7]), "ab": spread([1.5, 2.5, 0.5]), "y": YS}).spec
    assert spec["columns"]["types"] == {"a*": "ignore", "ab": "number"}
    resolve_spec(spec)


def test_a_name_of_dots_takes_no_memory_for_each_dot():
    rows = [{"y": n % 2, "n": n, "." * 20_000: "same"} for n in range(30)]
    tracemalloc.start()
    try:
        with suppress(InvalidSpec, BadInput):  # the name is too long for a specification
            propose(Sample(rows))
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_a_column_that_is_there_twice_makes_its_row_bad(tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_text('{"a.b": 1, "a": {"b": 2}, "y": 1}\n{"a.b": 1, "y": 0}\n')
    proposal = propose(read_sample(opened(path), 10))
    assert proposal.warnings == ["1 row cannot be read, such as row 0: 'a.b' is duplicated"]


def test_the_index_of_pandas_is_no_column(tmp_path):
    frame = pd.DataFrame({"a": [1.5, 2.5], "y": [0, 1]}, index=pd.Index(["u", "v"], name="key"))
    frame.to_parquet(tmp_path / "a.parquet")
    rows = read_sample(opened(tmp_path / "a.parquet"), 10).rows
    assert rows == [{"a": 1.5, "y": 0}, {"a": 2.5, "y": 1}]


def run(*args: str, given: bytes = b"") -> Result:
    return CliRunner().invoke(app, ["infer", *args], input=given)


REFUSED = [
    ("a.vw", b"1 | a:1\n", "has no columns; infer reads CSV"),
    ("a.csv", b"", "has no rows that can be read"),
    ("a.csv", b"a,y\n", "has no rows that can be read"),
    ("a.csv", b"a;b,c\n1;2,3\n", "separated by commas or by ';'"),
    ("a.csv", b",y\n1,2\n", "column 1 has no name"),
    ("a.json", b"[1, 2", "invalid JSON"),
    ("a.json", b"3", "must be a JSON list of rows"),
    ("a.json", b"[3]", "a row must be an object of its columns"),
    ("a.ndjson", b'{"x": {"a": 1}, "y": 1}\n', "rows name their features `x`"),
    ("a.ndjson", b"nonsense\n", "has no rows that can be read: row 0"),
    ("a.arrow", b"nonsense", "a.arrow"),
    ("a.parquet", b"PAR1nonsense", "a.parquet"),
    ("a.xyz", b"a", "unknown file extension"),
]


@pytest.mark.parametrize(("name", "body", "reason"), REFUSED)
def test_files_that_cannot_be_read_end_with_2(name, body, reason, tmp_path):
    path = tmp_path / name
    path.write_bytes(body)
    done = run(str(path))
    assert done.exit_code == 2 and reason in done.stderr and done.stdout == "", done.output
    assert "Traceback" not in done.stderr


def test_pyarrow_is_asked_for(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"a": [1.5, 2.5], "y": [0, 1]}), path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = run(str(path))
    assert done.exit_code == 2 and "pip install 'dualstream[arrow]'" in done.stderr
    assert not isinstance(done.exception, NoRows)


def test_the_command_prints_json_and_reasons():
    body = b"a,zip,y\n1.5,02134,yes\nbroken\n2.5,10115,no\n0.5,10115,\n"
    done = run("-", "--format", "csv", given=body)
    spec = json.loads(done.stdout)
    assert spec["columns"]["types"] == {"a": "number", "zip": "category"}
    assert "codes with leading zeros" in done.stderr
    assert "1 of 3 rows has no label" in done.stderr
    assert "1 row cannot be read, such as row 1" in done.stderr
    shown = run("-", "--format", "csv", "--json", "--rows", "1", given=body)
    result = json.loads(shown.stdout)
    assert (result["rows"], result["warnings"], shown.stderr) == (1, [], "")
    assert result["spec"]["columns"]["types"].keys() == {"a", "zip"}
    a, zipped, y = result["columns"]
    assert (a["name"], a["type"], a["missing"]) == ("a", "number", 0)
    assert zipped["reason"].startswith("codes") and y["type"] == "label"
    wrong = run("-", "--format", "csv", "--task", "ranking", given=body)
    assert wrong.exit_code == 2 and "--task must be one of binary" in wrong.stderr


def test_a_decimal_comma_is_given_as_a_format(shared_server):
    body = b"a;b;y\n" + b"".join(b"%d,5;%d;%d\n" % (n, n * n, n % 2) for n in range(40))
    done = run("-", "--format", "csv", given=body)
    assert "column 'a' is ignored" in done.stderr
    assert "if the comma is decimal, use --format csv-decimal-comma" in done.stderr
    done = run(
        "-",
        "--format",
        "csv-decimal-comma",
        "--create",
        "comma",
        "--url",
        shared_server.url,
        given=body,
    )
    assert done.stderr.splitlines()[-1] == "  dualstream learn comma - --format csv-decimal-comma"
    learn = ["learn", "comma", "-", "--format", "csv-decimal-comma", "--url", shared_server.url]
    assert "40 rows learned" in CliRunner().invoke(app, learn, input=body).output
    assert json.loads(done.stdout)["columns"]["types"] == {"a": "number", "b": "number"}
    with Client(shared_server.url) as client:
        client.delete("comma")


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.feather"])
def test_a_model_is_created_and_its_command_learns_the_file(name, tmp_path, shared_server):
    columns, _ = table(0, 60)
    path, _, _ = written(columns, name, tmp_path, 0)
    done = run(str(path), "--create", "inferred", "--url", shared_server.url)
    assert done.exit_code == 0, done.output
    command = done.stderr.splitlines()[-1].strip()
    assert "inferred is created, seq 0; learn the file with:" in done.stderr
    env = {"DUALSTREAM_URL": shared_server.url}
    ran = run_script(command, tmp_path, env, ("-e", "-o", "pipefail"))
    assert ran.returncode == 0 and "60 rows learned" in ran.stdout, (command, ran.stderr)
    with Client(shared_server.url) as client:
        result = client.get("inferred").spec["columns"]
        client.delete("inferred")
    assert result == resolve_spec(json.loads(done.stdout))["columns"]

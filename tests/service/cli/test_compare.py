"""`dualstream compare`: every format, bad input, an interrupt, and what it prints."""

import json
import signal

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner, Result

from dualstream.service.cli import app
from dualstream.service.compare import peers
from dualstream.service.compare.result import result_of
from dualstream.service.compare.run import Run
from tests.service.compare.support import samples, written

SPEC = {
    "algorithm": "sgd",
    "task": "binary",
    "labels": ["no", "yes"],
    "columns": {
        "label": "label",
        "types": {"x": "number", "color": "category", "member": "boolean"},
    },
}


def compare(*options: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["compare", *options], input=stdin)


@pytest.fixture
def light(monkeypatch) -> None:
    """Without peers: their libraries are not installed."""
    monkeypatch.setattr(peers, "find_spec", lambda name: None)


def document(*options: str, stdin: bytes | None = None) -> dict:
    done = compare(*options, "--json", stdin=stdin)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_every_format_has_the_same_result(tmp_path, light):
    rows, spec = samples(300), json.dumps(SPEC)
    paths = [
        written(tmp_path, rows),
        *(str(tmp_path / f"rows.{one}") for one in ("ndjson", "json")),
    ]
    with open(paths[1], "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    with open(paths[2], "w") as file:
        json.dump(rows, file)
    paths.append(str(tmp_path / "rows.parquet"))
    texts = [{name: str(value) for name, value in row.items()} for row in rows]
    parquet.write_table(pa.Table.from_pylist(texts), paths[3])
    results = [document(path, "--columns", spec) for path in paths]
    with open(paths[0], "rb") as file:
        results.append(document("-", "--format", "csv", "--columns", spec, stdin=file.read()))
    for result in results:
        assert result["rows"] == 300 and result["compared_from"] == 1
        # Without times: they differ from run to run.
        shown = [(one["name"], one["error_rate"], one["curve"]) for one in result["contestants"]]
        assert shown == [
            (one["name"], one["error_rate"], one["curve"]) for one in results[0]["contestants"]
        ]
        assert 0.0 < shown[0][1] < 0.3


def test_the_table_the_parts_and_the_sentences(tmp_path):
    pytest.importorskip("sklearn")
    path = written(tmp_path, samples(1_000))
    done = compare(path, "--columns", json.dumps(SPEC), "--peer", "linear")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == f"{path}: 1,000 rows, binary, label label; compared from row 48 on"
    heads = "errors log-loss AUC calibration us a row training gain (95 %)"
    assert lines[1].split() == heads.split()
    names = ["Dualstream", "most frequent label", "last label", "LogisticRegression"]
    assert [line[1:21].strip() for line in lines[2:6]] == names
    assert "20 x " in lines[5] and "20 x" not in lines[2]
    assert lines[7].split()[0] == "48-100" and lines[16].split()[0] == "901-1,000"
    assert lines[17].split(" ")[0] in ("Ahead", "Behind", "No") and len(lines) == 18


def test_other_tasks_have_other_figures(tmp_path, light):
    for task, figures in (("regression", {"mae", "rmse"}), ("multiclass", {"error_rate"})):
        spec = {**SPEC, "task": task}
        del spec["labels"]
        path = written(tmp_path, samples(300, task=task))
        result = document(path, "--columns", json.dumps(spec))
        assert result["task"] == task and figures <= result["contestants"][0].keys()
        done = compare(path, "--columns", json.dumps(spec))
        head = done.stdout.splitlines()[1].split()
        assert head[0] == ("MAE" if task == "regression" else "errors"), done.output


def test_the_average_precision_is_shown_where_positives_are_rare(tmp_path, light):
    rows = [row | {"label": "no"} if at % 4 else row for at, row in enumerate(samples(400))]
    rows = [row for at, row in enumerate(rows) if row["label"] == "no" or at % 8 == 0]
    done = compare(written(tmp_path, rows), "--columns", json.dumps(SPEC))
    assert done.stdout.splitlines()[1].split()[2] == "AP", done.output


def test_columns_are_proposed_and_refused_rows_are_counted(tmp_path, light):
    rows = [row | {"weight": 1.0} for row in samples(300)]
    rows[5]["x"], rows[7]["label"] = "wide", ""
    path = written(tmp_path, rows)
    done = compare(path)
    assert done.exit_code == 0
    assert f"{path}: 299 rows, 1 refused, binary" in done.stdout
    assert "warning: 1 of 300 rows has no label and is refused" in done.stdout
    assert "LightGBM is left out: lightgbm is not installed" in done.stdout


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--label", "price"], "there is no column 'price'; the columns are at, x, color"),
        (["--task", "classes"], "--task must be one of binary, multiclass, regression"),
        (["--task", "regression"], "has values that are no numbers"),
        (["--time", "price"], "--time: there is no column 'price'"),
        (["--time", "color"], "--time: column 'color' has neither times nor numbers, such as"),
        (["--time", "label"], "--time: column 'label' has neither times nor numbers"),
        (["--delay", "9" * 20], "give a shorter --retrain-every or --delay, or a longer --window"),
        (["--frozen-from", "9"], "--frozen-from is the first row that counts with --frozen FILE"),
        (["--columns", json.dumps(SPEC), "--task", "regression"], "labels must be left out"),
        (["--delay", "7d"], "--delay 7d is a time: name the column with --time COLUMN"),
        (["--window", "0"], "--window must be more than 0"),
        (["--retrain-every", "soon"], "--retrain-every must be a number of rows or a time"),
        (["--retrain-every", "400"], "no retraining every 400 rows fits into 300 rows"),
        (["--peer", "xgboost"], "--peer must be one of lightgbm, boosting, linear"),
        (["--frozen", "nowhere.onnx"], "--frozen nowhere.onnx: No such file or directory"),
        (["--with", "{"], "--with must be a JSON object or a file of one"),
        (["--with", "nowhere.json"], "--with nowhere.json: No such file or directory"),
        (["--with", '{"columns": {}}'], "--with must not have 'columns'"),
        (["--columns", "[]"], "--columns []: No such file or directory"),
        (["--columns", "{}"], "--columns must be a specification with `columns`"),
    ],
)
def test_bad_options_end_with_2(tmp_path, light, options, reason):
    done = compare(written(tmp_path, samples(300)), *options)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert reason in done.stderr and len(done.stderr.splitlines()) == 1


def test_bad_files_end_with_2(tmp_path, light):
    one_class = [row | {"label": "yes"} for row in samples(60)]
    cases = {
        "empty.csv": (b"", "has no rows"),
        "header.csv": (b"a,label\n", "has no rows"),
        "few.csv": (b"a,label\n" + b"1,0\n2,1\n" * 9, "has 18 rows; a comparison needs 50"),
        "wide.xlsx": (b"PK\x03\x04", "unknown file extension"),
        "zip.csv": (b"PK\x03\x04" + bytes(99), "ZIP archive"),
        "rows.libsvm": (b"+1 1:1\n", "has no columns"),
    }
    for name, (content, reason) in cases.items():
        (tmp_path / name).write_bytes(content)
        done = compare(str(tmp_path / name), "--label", "label")
        assert done.exit_code == 2 and reason in done.stderr, (name, done.output)
    done = compare(written(tmp_path, one_class))
    assert "all 60 labels are one class; nothing is to be learned" in done.stderr
    assert "no file" in compare(str(tmp_path / "nowhere.csv")).stderr


def test_ctrl_c_ends_with_the_rows_so_far(tmp_path, light, monkeypatch):
    path, spec = written(tmp_path, samples(300)), json.dumps(SPEC)
    run_block = Run._run_block

    def stopped(self, block):
        run_block(self, block)
        if block.stop >= limit:
            raise KeyboardInterrupt

    limit = 100
    monkeypatch.setattr(Run, "_run_block", stopped)
    done = compare(path, "--columns", spec, "--json")
    result = json.loads(done.stdout)
    assert done.exit_code == 130 and result["is_interrupted"]
    assert result["compared"] == result["done"] == 100
    limit = 0
    done = compare(path, "--columns", spec)
    assert done.exit_code == 130 and "stopped after row 14, compared from row 1" in done.stdout


def test_ctrl_c_twice_has_the_result_once(tmp_path, light, monkeypatch):
    run_block = Run._run_block

    def interrupted(*args):
        signal.raise_signal(signal.SIGINT)
        return result_of(*args)

    def stopped(self, block):
        run_block(self, block)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Run, "_run_block", stopped)
    monkeypatch.setattr("dualstream.service.compare.result.result_of", interrupted)
    monkeypatch.setattr("dualstream.service.compare.run.REPEATED_S", 60.0)
    done = compare(written(tmp_path, samples(300)), "--columns", json.dumps(SPEC), "--json")
    assert done.exit_code == 130 and json.loads(done.stdout)["is_interrupted"], done.output
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.setattr("dualstream.service.compare.run.REPEATED_S", 0.0)
    done = compare(written(tmp_path, samples(300)), "--columns", json.dumps(SPEC), "--json")
    assert done.exit_code == 130 and "interrupted" in done.stderr and not done.stdout


def test_labels_that_are_too_large_are_named(tmp_path, light):
    rows = samples(300, task="regression")
    path = written(tmp_path, [*rows, rows[0] | {"label": 1e150}])
    done = compare(path, "--with", '{"algorithm": "sgd"}')
    assert done.exit_code == 0, done.output
    assert "300 rows, 1 refused, regression" in done.stdout
    assert "the number must be in [-1e100, 1e100], got" in done.stdout
    rows = [row | {"label": f"{at}.5e150"} if at % 3 else row for at, row in enumerate(rows)]
    done = compare(written(tmp_path, rows), "--label", "label", "--task", "regression")
    assert done.exit_code == 2 and "numbers that are too large, such as 1.5e150" in done.stderr


def test_a_long_run_is_announced(tmp_path, light, monkeypatch):
    monkeypatch.setattr("dualstream.service.compare.prepare.estimate_s", lambda run: 4_000.0)
    done = compare(written(tmp_path, samples(300)), "--columns", json.dumps(SPEC), "--progress")
    assert "takes about 67 minutes for 300 rows. Ctrl-C ends it with the result" in done.stderr


def test_the_report_is_written(tmp_path, light):
    path, page = written(tmp_path, samples(300)), tmp_path / "compare.html"
    done = compare(path, "--columns", json.dumps(SPEC), "--report", str(page))
    assert done.exit_code == 0 and page.read_text().startswith("<!doctype html>")
    done = compare(path, "--columns", json.dumps(SPEC), "--report", str(tmp_path / "no" / "x.html"))
    # It ends before the run, whose result would be lost.
    assert done.exit_code == 2 and "it cannot be written" in done.stderr and not done.stdout


def test_a_report_that_fails_leaves_the_printed_result(tmp_path, light, monkeypatch):
    def full(path, *content, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    path = written(tmp_path, samples(300))
    done = compare(path, "--columns", json.dumps(SPEC), "--report", str(tmp_path / "x.html"))
    assert done.exit_code == 2 and "No space left on device" in done.stderr
    assert "300 rows, binary" in done.stdout

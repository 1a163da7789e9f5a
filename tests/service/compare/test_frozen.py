"""Saved models: they get the columns that they want, and never learn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from onnx import TensorProto, helper

from dualstream.client import BadInput
from dualstream.service.cli.rows import row_files
from dualstream.service.compare import peers
from dualstream.service.compare.file_rows import FileRows, proposed, read_rows
from dualstream.service.compare.frozen import _output, load
from dualstream.service.compare.options import Options
from dualstream.service.compare.prepare import prepare
from dualstream.service.compare.result import conclusion
from dualstream.service.compare.run import Run
from dualstream.service.features.infer.sample import read_sample
from tests.service.compare.support import COLORS, samples, written

ROWS = 400
FLOAT, TEXT = TensorProto.FLOAT, TensorProto.STRING


@pytest.fixture(autouse=True)
def light(monkeypatch):
    """Without peers."""
    monkeypatch.setattr("dualstream.service.compare.prepare.default_peers", lambda columns: ())


def run_of(
    model: Path, rows: list[dict], task: str | None = None, name: str | None = None, **options
) -> Run:
    path = written(model.parent, rows)
    file = row_files([path], None, None)[0]
    sample = read_sample(file, 10_000)
    spec, _ = proposed(sample, "label", task)
    saved = load(str(model), spec, sample, 1)
    saved = replace(saved, name=name or saved.name)
    got = read_rows(file, spec, sample, frozen=saved)
    got = FileRows(
        spec | {"algorithm": "sgd"},
        got.rows,
        got.columns,
        frozen=got.frozen,
        frozen_columns=got.frozen_columns,
    )
    run, _ = prepare(got, Options(**options))
    run.go()
    return run


def frame(rows: list[dict]) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    x = pd.to_numeric(table["x"].replace("", None))
    color = pd.Categorical(table["color"], categories=["blue", "green", "red"])
    return pd.DataFrame({"color": color, "x": x, "member": table["member"] == "true"})


def onnx_file(folder: Path, inputs: dict[str, tuple[int, int]], nodes: list, out: str) -> Path:
    """A model of these inputs: name -> type and width."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, t, [None, w]) for n, (t, w) in inputs.items()],
        [helper.make_tensor_value_info(out, FLOAT, None)],
        [helper.make_tensor("weights", FLOAT, [2, 1], [2.0, 1.0])],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 2)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_a_lightgbm_model_predicts_as_in_its_library(tmp_path, task):
    lightgbm = pytest.importorskip("lightgbm")
    rows = samples(ROWS, task=task)
    table, labels = frame(rows), [row["label"] for row in rows]
    truth = np.array([one == "yes" for one in labels] if task == "binary" else labels, float)
    options = {"objective": task, "verbose": -1, "num_threads": 1}
    model = lightgbm.train(options, lightgbm.Dataset(table, truth, params={"verbose": -1}), 20)
    path = tmp_path / "model.txt"
    model.save_model(path)
    run = run_of(path, rows)
    frozen = run.contestants[-1]
    assert (frozen.name, frozen.kind, frozen.trainings) == ("model.txt", "frozen", 0)
    predicted = model.predict(table)
    wrong = (predicted > 0.5) != truth if task == "binary" else abs(predicted - truth)
    assert run.compare_from == ROWS // 10
    assert run.figures["model.txt"].loss == pytest.approx(wrong[ROWS // 10 :].mean())
    assert run.figures["Dualstream"].rows == ROWS - ROWS // 10
    late = run_of(path, rows, frozen_from=301)
    assert late.compare_from == 300
    assert late.figures["model.txt"].loss == pytest.approx(wrong[300:].mean())
    with pytest.raises(BadInput, match="--frozen-from 401 is beyond the 400 rows"):
        run_of(path, rows, frozen_from=401)


def test_an_onnx_model_takes_the_numeric_columns_in_their_order(tmp_path):
    rows = [row | {"x": row["x"] or 0.5} for row in samples(ROWS)]
    nodes = [
        helper.make_node("MatMul", ["rows", "weights"], ["sum"]),
        helper.make_node("Sigmoid", ["sum"], ["chance"]),
    ]
    run = run_of(onnx_file(tmp_path, {"rows": (FLOAT, 2)}, nodes, "chance"), rows)
    chances = [2 * row["x"] + (row["member"] == "true") > 0 for row in rows]
    wrong = np.array(
        [one != (row["label"] == "yes") for one, row in zip(chances, rows, strict=True)]
    )
    assert run.figures["model.onnx"].loss == pytest.approx(wrong[40:].mean())
    same = run_of(tmp_path / "model.onnx", rows, name="last label")
    assert [one.name for one in same.contestants[2:]] == ["last label", "last label (saved)"]
    assert same.figures["last label (saved)"].loss == run.figures["model.onnx"].loss
    assert same.figures["last label"].loss == run.figures["last label"].loss
    more = [row | {"more": row["x"] + 1} for row in rows]
    with pytest.raises(BadInput, match="'rows' wants 2 numbers; the file has 3 numeric columns: x"):
        run_of(tmp_path / "model.onnx", more)


def test_an_onnx_model_takes_columns_by_name(tmp_path):
    rows = samples(ROWS)
    codes = helper.make_node(
        "LabelEncoder",
        ["color"],
        ["code"],
        domain="ai.onnx.ml",
        keys_strings=list(COLORS),
        values_floats=[-1.0, 0.0, 1.0],
        default_float=0.0,
    )
    nodes = [
        codes,
        helper.make_node("Sigmoid", ["code"], ["one"]),
        helper.make_node("Neg", ["code"], ["minus"]),
        helper.make_node("Sigmoid", ["minus"], ["zero"]),
        helper.make_node("Concat", ["zero", "one"], ["both"], axis=1),
    ]
    run = run_of(onnx_file(tmp_path, {"color": (TEXT, 1)}, nodes, "both"), rows)
    wrong = np.array([(row["color"] == "blue") != (row["label"] == "yes") for row in rows])
    assert run.figures["model.onnx"].loss == pytest.approx(wrong[40:].mean())
    inputs = {"color": (TEXT, 1), "price": (FLOAT, 1)}
    with pytest.raises(BadInput, match="wants color, price; the file does not have price"):
        run_of(onnx_file(tmp_path, inputs, nodes, "both"), rows)
    same = [helper.make_node("Identity", ["color"], ["both"])]
    with pytest.raises(BadInput, match="input 'color' is a number, and the column has 'r|g|b"):
        run_of(onnx_file(tmp_path, {"color": (FLOAT, 1)}, same, "both"), rows)


def test_other_files_are_refused(tmp_path, monkeypatch):
    rows = samples(ROWS)
    cases = {
        "model.pkl": (b"\x80\x04", "it must be a LightGBM text model or an .onnx file"),
        "model.onnx": (b"no model", "model.onnx: "),
    }
    for name, (content, reason) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInput, match=reason):
            run_of(tmp_path / name, rows)
    with pytest.raises(BadInput, match="No such file or directory"):
        run_of(tmp_path / "nowhere.onnx", rows)
    with pytest.raises(BadInput, match="--frozen takes models of two classes or of numbers"):
        run_of(tmp_path / "model.onnx", samples(ROWS, task="multiclass"))
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="needs onnxruntime, which is not installed"):
        run_of(tmp_path / "model.onnx", rows)


def test_outputs_of_named_classes_are_read_by_their_names():
    """The classes of a model may have another order than the labels of the file."""
    chances = {"fraud": 0.9, "ok": 0.1}, {"fraud": 0.3, "ok": 0.7}
    labels = np.array(["fraud", "ok"], object)
    for second, expected in (("fraud", [0.9, 0.3]), ("ok", [0.1, 0.7]), (None, [0.1, 0.7])):
        assert _output("", [labels, [*chances]], second).tolist() == expected


def test_a_model_that_ranks_in_reverse_is_named(tmp_path):
    rows = [row | {"x": row["x"] or 0.5} for row in samples(ROWS)]
    for sign, expected in (("Identity", "is read as 'yes'"), ("Neg", "ranks rows in reverse")):
        nodes = [
            helper.make_node("MatMul", ["rows", "weights"], ["sum"]),
            helper.make_node(sign, ["sum"], ["score"]),
            helper.make_node("Sigmoid", ["score"], ["chance"]),
        ]
        run = run_of(onnx_file(tmp_path, {"rows": (FLOAT, 2)}, nodes, "chance"), rows)
        frozen = run.contestants[-1]
        figures = run.figures[frozen.name].summary()
        assert expected in frozen.note(figures)
        one = {
            "name": "m",
            "kind": "frozen",
            "gain": run.gains[frozen.name].summary(0.95),
        } | figures
        assert (conclusion(one, run, Options()) is None) == (sign == "Neg")

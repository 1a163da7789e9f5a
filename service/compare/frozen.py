"""A saved model that never learns: a LightGBM text model, or ONNX.

LightGBM models take columns by their feature names, ONNX models by the names of their inputs, or
one float input with the numeric columns in the order of the file. The prediction of two classes is
the second one where its output is above .5.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.client import BadInput
from dualstream.service.compare.columns import TableColumns, table_spec
from dualstream.service.compare.contestants import Contestant, Predictions
from dualstream.service.compare.peers import is_importable, log_odds, threads
from dualstream.service.compare.schedule import Block
from dualstream.service.compare.stored_rows import StoredRows
from dualstream.service.features.infer.forms import is_boolean, is_number
from dualstream.service.features.infer.sample import Sample
from dualstream.service.features.infer.sampled_values import Seen, seen_in
from dualstream.solvers import resolve_spec
from dualstream.solvers.jit import Floats
from dualstream.wire.plural import plural

_MAX_NAMED = 50
_LIGHTGBM = b"tree\n"
_NUMBERS: Mapping[str, type] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}
_TEXT = "tensor(string)"
_MISSING = "missing"

Table = npt.NDArray[np.float64]
Score = Callable[[Table, Sequence[Sequence[str]]], Floats]
"""Probabilities of the second class, or numbers, (n,), of rows of a table; and the categories of
each of its columns."""


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """A saved model.

    columns  columns of the file that it takes, in the order of its table
    texts    which of them are texts
    """

    name: str
    about: str
    columns: Sequence[str]
    texts: Sequence[bool]
    kinds: Sequence[str]
    score: Score
    second: str | None = None
    """The label that an output above .5 is read as, if labels are texts."""

    def spec(self, resolved: Mapping[str, Any]) -> dict[str, Any]:
        """The specification that encodes its columns, see columns.py."""
        types = dict(zip(self.columns, self.kinds, strict=True))
        roles = resolved["columns"]
        columns = {
            "label": roles["label"],
            "types": types,
            "missing": roles["missing"],
            "unknown": "ignore",
        }
        fields = {"task": resolved["task"], "columns": columns}
        if resolved.get("labels"):
            fields["labels"] = resolved["labels"]
        spec = table_spec(resolve_spec(fields))
        assert spec is not None
        return spec


def load(path: str, spec: Mapping[str, Any], sample: Sample, thread_count: int) -> FrozenModel:
    """The model of a file, for rows of a specification. Raises BadInput."""
    resolved = resolve_spec(spec)
    label = resolved["columns"]["label"]
    if resolved["task"] == "multiclass":
        raise BadInput("--frozen takes models of two classes or of numbers")
    try:
        begins = Path(path).read_bytes()[: len(_LIGHTGBM)]
    except OSError as wrong:
        raise BadInput(f"--frozen {path}: {wrong.strerror or wrong}") from None
    seen = {name: one for name, one in seen_in(sample.rows).items() if name != label}
    second = resolved["labels"][1] if resolved.get("labels") else None
    if begins == _LIGHTGBM:
        return replace(_lightgbm(path, seen, thread_count), second=second)
    if Path(path).suffix.lower() == ".onnx":
        return replace(_onnx(path, seen, thread_count, second), second=second)
    raise BadInput(f"--frozen {path}: it must be a LightGBM text model or an .onnx file")


def _lightgbm(path: str, seen: Mapping[str, Seen], thread_count: int) -> FrozenModel:
    _require("lightgbm", path)
    import lightgbm

    try:
        model = lightgbm.Booster(model_file=path)
    except lightgbm.basic.LightGBMError as wrong:
        raise BadInput(f"--frozen {path}: {wrong}") from None
    if model.num_model_per_iteration() > 1:
        raise BadInput(f"--frozen {path}: it has more than two classes")
    spelled = {name.replace(" ", "_"): name for name in seen} | {name: name for name in seen}
    wanted = model.feature_name()
    categories = _categories(path, model)
    texts = [at in categories for at in range(len(wanted))]
    chosen = _chosen(path, wanted, [spelled.get(name, name) for name in wanted], texts, seen)

    def score(table: Table, names: Sequence[Sequence[str]]) -> Floats:
        table = table.copy()
        for column, texts_of_model in categories.items():
            code = {text: float(at) for at, text in enumerate(texts_of_model)}
            codes = np.array([code.get(text, np.nan) for text in names[column]] or [np.nan])
            table[:, column] = _looked_up(table[:, column], codes)
        return np.asarray(model.predict(table, num_threads=thread_count), np.float64)

    about = f"LightGBM model {Path(path).name}, never retrained"
    kinds = _kinds(chosen, texts, seen)
    return FrozenModel(Path(path).name, about, chosen, texts, kinds, score)


def _categories(path: str, model: Any) -> dict[int, list[str]]:
    """Texts of the categories of each column that was one of pandas, by the column's number."""
    of_pandas = model.pandas_categorical or []
    if not of_pandas:
        return {}
    fields = dict(
        line[1:-1].split(": ", 1)
        for line in model.model_to_string().splitlines()
        if line.startswith("[categorical_feature: ")
    )
    columns = [int(at) for at in fields.get("categorical_feature", "").split(",") if at]
    if len(columns) != len(of_pandas):
        raise BadInput(f"--frozen {path}: it does not say which columns are categories")
    pairs = zip(columns, of_pandas, strict=True)
    return {column: list(map(str, texts)) for column, texts in pairs}


def _looked_up(codes: Floats, values: Floats) -> Floats:
    """The value of each code; NaN for a missing one."""
    present = ~np.isnan(codes)
    looked_up = np.full(len(codes), np.nan)
    looked_up[present] = values[codes[present].astype(np.int64)]
    return looked_up


def _onnx(
    path: str, seen: Mapping[str, Seen], thread_count: int, second: str | None
) -> FrozenModel:
    _require("onnxruntime", path)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = thread_count
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as wrong:  # the library's errors have no common base
        raise BadInput(f"--frozen {path}: {str(wrong).splitlines()[0]}") from None
    inputs = session.get_inputs()
    for one in inputs:
        if one.type not in _NUMBERS and one.type != _TEXT:
            raise BadInput(f"--frozen {path}: input {one.name!r} is a {one.type}")
    numeric = [name for name, one in seen.items() if _is_numeric(one)]
    width = inputs[0].shape[-1] if len(inputs[0].shape) == 2 else 1
    is_matrix = len(inputs) == 1 and inputs[0].name not in seen and inputs[0].type in _NUMBERS
    if is_matrix:
        if isinstance(width, int) and width != len(numeric):
            has = plural(len(numeric), "numeric column")
            raise BadInput(
                f"--frozen {path}: its input {inputs[0].name!r} wants {plural(width, 'number')};"
                f" the file has {has}: {_listed(numeric)}"
            )
        chosen, texts = numeric, [False] * len(numeric)
    else:
        names = [one.name for one in inputs]
        texts = [one.type == _TEXT for one in inputs]
        chosen = _chosen(path, names, names, texts, seen)

    def score(table: Table, names: Sequence[Sequence[str]]) -> Floats:
        feeds: dict[str, Any]
        if is_matrix:
            feeds = {inputs[0].name: table.astype(_NUMBERS[inputs[0].type])}
        else:
            feeds = {
                one.name: _column(table[:, at], one.type, names[at])
                for at, one in enumerate(inputs)
            }
        return _output(path, session.run(None, feeds), second)

    about = f"ONNX model {Path(path).name}, never retrained"
    kinds = _kinds(chosen, texts, seen)
    model = FrozenModel(Path(path).name, about, chosen, texts, kinds, score)
    rows = np.zeros((2, len(chosen)))
    try:
        score(rows, [[""] for _ in chosen])
    except BadInput:
        raise
    except Exception as wrong:  # as above
        raise BadInput(f"--frozen {path}: {str(wrong).splitlines()[0]}") from None
    return model


def _column(column: Floats, kind: str, names: Sequence[str]) -> Any:
    """(n, 1): an input of an ONNX model."""
    if kind != _TEXT:
        return column.astype(_NUMBERS[kind])[:, None]
    texts = np.array([*("" if name == _MISSING else name for name in names), ""], object)
    codes = np.where(np.isnan(column), len(texts) - 1, column).astype(np.int64)
    return texts[codes][:, None]


def _output(path: str, outputs: Sequence[Any], second: str | None) -> Floats:
    """Probabilities of the second class, or numbers, among the outputs of an ONNX model.

    Classes with names are taken by the name `second`.
    """
    for one in reversed(outputs):
        if isinstance(one, list) and one and isinstance(one[0], Mapping) and len(one[0]) == 2:
            chosen = second if second in one[0] else list(one[0])[1]
            return np.array([row[chosen] for row in one], np.float64)
        if isinstance(one, np.ndarray) and one.dtype.kind in "fi":
            if one.ndim == 2 and one.shape[1] == 2:
                return one[:, 1].astype(np.float64)
            if one.ndim == 1 or (one.ndim == 2 and one.shape[1] == 1):
                return one.reshape(-1).astype(np.float64)
    raise BadInput(
        f"--frozen {path}: no output is a number, or has the probabilities of two classes"
    )


def _chosen(
    path: str,
    wanted: Sequence[str],
    names: Sequence[str],
    texts: Sequence[bool],
    seen: Mapping[str, Seen],
) -> list[str]:
    """Columns of the file for these inputs. Raises BadInput if one does not fit."""
    missing = [name for name in names if name not in seen]
    if missing:
        lacks = f"the file does not have {_listed(missing)}"
        raise BadInput(f"--frozen {path}: it wants {_listed(wanted)}; {lacks}")
    for name, is_text in zip(names, texts, strict=True):
        if not is_text and not _is_numeric(seen[name]):
            shown = next(one for one in seen[name].examples if not is_number(one))
            raise BadInput(
                f"--frozen {path}: it wants {_listed(wanted)}; input {name!r} is a number, and the"
                f" column has {shown!r}"
            )
    return list(names)


def _kinds(columns: Sequence[str], texts: Sequence[bool], seen: Mapping[str, Seen]) -> list[str]:
    """The type of each column."""
    pairs = zip(columns, texts, strict=True)
    return ["category" if is_text else _kind(seen[name]) for name, is_text in pairs]


def _kind(seen: Seen) -> str:
    return "number" if seen.all_are(is_number) else "boolean"


def _is_numeric(seen: Seen) -> bool:
    return seen.all_are(is_number) or seen.all_are(is_boolean)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _require(module: str, path: str) -> None:
    if not is_importable(module):
        raise BadInput(
            f"--frozen {path} needs {module}, which is not installed: pip install"
            " 'dualstream[compare]'"
        )


def ranks_in_reverse(figures: Mapping[str, Any]) -> bool:
    """Are these the figures of a saved model that ranks rows worse than chance?"""
    auc = figures.get("auc")
    return figures["kind"] == "frozen" and auc is not None and auc < 0.5


class Frozen(Contestant):
    """A saved model on the rows of a run."""

    kind = "frozen"

    def __init__(
        self, model: FrozenModel, task: str, rows: StoredRows, columns: TableColumns, count: int
    ) -> None:
        self.name, self.about = model.name, model.about
        self._model, self._task, self._rows = model, task, rows
        self._at = [columns.names.index(name) for name in model.columns]
        self._names = [columns.texts_of(at) for at in self._at]
        self._threads = count

    def note(self, figures: Mapping[str, Any]) -> str:
        """How its output is read; empty without named classes, unless it ranks in reverse."""
        read_as = repr(self._model.second) if self._model.second else "the positive class"
        if ranks_in_reverse({"kind": self.kind, **figures}):
            return (
                f"warning: {self.name} ranks rows in reverse (AUC {figures['auc']:.2f}): its output"
                f" above .5, read as {read_as}, seems to mean the other label; swap `labels` in"
                " --columns"
            )
        return f"{self.name}: an output above .5 is read as {read_as}" if self._model.second else ""

    def _predict(self, block: Block) -> Predictions:
        table = self._rows.table(block.first, block.stop, "frozen")[:, self._at]
        with threads(self._threads):
            scores = self._model.score(np.asarray(table, np.float64), self._names)
        if self._task == "regression":
            return Predictions(scores)
        labels = np.where(scores > 0.5, 1.0, -1.0)
        if scores.min() < 0.0 or scores.max() > 1.0:
            return Predictions(labels, None, scores)
        return Predictions(labels, scores, log_odds(scores))

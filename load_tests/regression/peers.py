"""Regression peers with their defaults, row by row; their results are in peers.json.

River gets numbers after StandardScaler and texts after OneHotEncoder; its trees get raw numbers.
scikit-learn gets one-hot columns after StandardScaler, both by `partial_fit` on each row. Vowpal
Wabbit gets names and raw values.

Two slow peers are left out on large streams: AMFRegressor above 5,000 rows or 200,000 cells, and
BayesianLinearRegression, whose state is a square matrix, above 1,000 columns.
"""

import json
import numbers
import warnings
from collections.abc import Callable, Mapping
from dataclasses import astuple
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from load_tests.regression.data import Floats, Rows, Stream, Value, as_batch, columns_of, to_dense
from load_tests.regression.runs import Errors, load, seen, unseen

KEPT = Path(__file__).with_name("peers.json")
PACKAGES = ("river", "scikit-learn", "vowpalwabbit", "numpy")
LINEAR = ("river_lr", "river_pa", "river_blr", "sk_sgd", "vw")
NAMES = (*LINEAR, "river_hatr", "river_amf")

Kept = Mapping[str, Mapping[str, Errors | None]]


def kept() -> tuple[dict[str, str], Kept]:
    """Versions of the packages; stream -> peer -> its errors, None where it was left out."""
    stored = json.loads(KEPT.read_text())
    runs = {
        stream: {peer: pair and Errors(*pair) for peer, pair in peers.items()}
        for stream, peers in stored["runs"].items()
    }
    return stored["versions"], runs


def measure() -> None:
    """Run all peers on all streams and write peers.json."""
    warnings.filterwarnings("ignore")
    lines = []
    for name in (*seen(), *unseen()):
        stream = load(name)
        errors: dict[str, Any] = {peer: _errors(peer, stream) for peer in NAMES}
        print(name, errors, flush=True)
        lines.append(f"{json.dumps(name)}: {json.dumps(errors)}")
        versions = json.dumps({package: version(package) for package in PACKAGES})
        text = ",\n".join(lines)
        KEPT.write_text(f'{{"versions": {versions},\n"runs": {{\n{text}\n}}}}\n')


def _errors(peer: str, stream: Stream) -> tuple[float, ...] | None:
    rows, y = stream
    columns = len(columns_of(rows))
    if peer == "river_amf" and (len(rows) > 5_000 or len(rows) * columns > 200_000):
        return None
    if peer == "river_blr" and columns > 1_000:
        return None
    if peer == "vw":
        predictions = vowpal_wabbit(rows, y)
    elif peer == "sk_sgd":
        predictions = sgd(stream)
    else:
        predictions = river(RIVER[peer](), rows, y)
    return astuple(Errors.of(predictions, y))


def _river(model: Callable[[Any, Any], Any], *, scaled: bool) -> Callable[[], Any]:
    def made() -> Any:
        from river import compose, preprocessing

        values = compose.SelectType(numbers.Number)
        if scaled:
            values = values | preprocessing.StandardScaler()
        texts = compose.SelectType(str) | preprocessing.OneHotEncoder()
        return (values + texts) | model()

    return made


def _linear(name: str) -> Callable[[], Any]:
    def made() -> Any:
        from river import linear_model

        return getattr(linear_model, name)()

    return _river(made, scaled=True)


def _tree() -> Any:
    from river.tree import HoeffdingAdaptiveTreeRegressor

    return HoeffdingAdaptiveTreeRegressor(seed=1)


def _forest() -> Any:
    from river.forest import AMFRegressor

    return AMFRegressor(seed=1)


RIVER: Mapping[str, Callable[[], Any]] = {
    "river_lr": _linear("LinearRegression"),
    "river_pa": _linear("PARegressor"),
    "river_blr": _linear("BayesianLinearRegression"),
    "river_hatr": _river(_tree, scaled=False),
    "river_amf": _river(_forest, scaled=False),
}


def river(model: Any, rows: Rows, y: Floats) -> Floats:
    """Predictions (n,) of a River model."""
    predictions = np.zeros(len(rows))
    for i, (row, target) in enumerate(zip(rows, y.tolist(), strict=True)):
        # Some models cannot predict before they learn; row 1 is not counted.
        predictions[i] = (model.predict_one(row) or 0.0) if i else 0.0
        model.learn_one(row, target)
    return predictions


def sgd(stream: Stream) -> Floats:
    """Predictions (n,) of SGDRegressor."""
    from sklearn import config_context
    from sklearn.linear_model import SGDRegressor
    from sklearn.preprocessing import StandardScaler

    batch = as_batch(stream)
    x, scaler, model = to_dense(batch), StandardScaler(), SGDRegressor(random_state=0)
    predictions = np.zeros(len(batch))
    with config_context(assume_finite=True, skip_parameter_validation=True):
        for i in range(len(batch)):
            row = scaler.partial_fit(x[i : i + 1]).transform(x[i : i + 1])
            predictions[i] = model.predict(row)[0] if i else 0.0
            model.partial_fit(row, batch.labels[i : i + 1])
    return predictions


def vowpal_wabbit(rows: Rows, y: Floats) -> Floats:
    """Predictions (n,) of Vowpal Wabbit."""
    from vowpalwabbit import LabelType, Workspace

    workspace = Workspace("--quiet")
    predictions = np.zeros(len(rows))
    for i, (row, target) in enumerate(zip(rows, y.tolist(), strict=True)):
        words = " ".join(_word(name, value) for name, value in row.items() if value != 0.0)
        example = workspace.parse(f"{target!r} | {words}", LabelType.SIMPLE)
        workspace.learn(example)
        predictions[i] = example.get_simplelabel_prediction()
        workspace.finish_example(example)
    return predictions


def _word(name: str, value: Value) -> str:
    if isinstance(value, str):
        name, value = f"{name}={value}", 1.0
    for mark in ": |":
        name = name.replace(mark, "_")
    return f"{name}:{value!r}"

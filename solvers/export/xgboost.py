"""`xgboost` export: boosted trees as a model file of XGBoost, in its JSON format.

`xgboost.Booster(model_file=...)` loads it (schema: doc/model.schema of XGBoost). Features are
columns from 0: all of them in order, or those of the attribute `indices` for hashed features.

XGBoost goes left where a float32 value is below a float32 threshold, the learner where it is at
most a float64 threshold. So the file has the least float32 above the learner's threshold. A
missing value goes where 0 goes. XGBoost adds leaves in float32; the constant is a tree of one leaf,
as `base_score` is rounded as a probability.
"""

from typing import Any

import msgspec
import numpy as np

from dualstream.solvers.errors import NotExpressible
from dualstream.solvers.export.refusals import name_of
from dualstream.solvers.export.source import Source
from dualstream.solvers.protocols.served_form import Mixture, NonlinearScore, Trees

_NONE, _NO_PARENT = -1, 2**31 - 1
_LARGEST = float(np.finfo(np.float32).max)


def write(source: Source) -> bytes:
    """Raises NotExpressible."""
    score = _trees_of(source)
    used = score.columns[np.unique(score.feature[score.feature >= 0])]
    if source.is_hashed:
        # A file has at least one feature.
        columns = np.unique(used) if len(used) else np.zeros(1, np.int64)
    else:
        columns = np.arange(source.form.dim)
    if bool((np.abs([score.base, *score.value.flat]) > _LARGEST).any()):
        raise NotExpressible("its leaves exceed float32: export it as `onnx`")
    # Leaves have feature -1: the last place.
    positions = np.append(np.searchsorted(columns, score.columns), 0)
    trees = [_leaf(score.base, len(columns))]
    for arrays in zip(score.feature, score.left, score.threshold, score.value, strict=True):
        trees.append(_tree(len(trees), *arrays, positions, len(columns)))
    objective, base = _objective(source)
    document = {
        "learner": {
            "attributes": _about(source, columns),
            "feature_names": [],
            "feature_types": [],
            "gradient_booster": {
                "model": {
                    "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
                    "iteration_indptr": list(range(len(trees) + 1)),
                    "tree_info": [0] * len(trees),
                    "trees": trees,
                },
                "name": "gbtree",
            },
            "learner_model_param": {
                "base_score": base,
                "boost_from_average": "1",
                "num_class": "0",
                "num_feature": str(len(columns)),
                "num_target": "1",
            },
            "objective": objective,
        },
        "version": [2, 1, 0],
    }
    return msgspec.json.encode(document)


def _trees_of(source: Source) -> Trees:
    score, *_ = source.form.scores
    if isinstance(score, Mixture):
        raise NotExpressible(
            "a portfolio is a mixture of its members: export it as `onnx`, or a boosted member as"
            " `member`"
        )
    if not isinstance(score, Trees):
        what, formats = "linear", "`json` or `onnx`"
        if isinstance(score, NonlinearScore):
            what, formats = name_of(score), "`onnx`"
        raise NotExpressible(f"it is {what}, and the format has boosted trees only: use {formats}")
    return score


def _objective(source: Source) -> tuple[dict[str, Any], str]:
    """The objective, and the base score whose margin is 0."""
    weight = {"reg_loss_param": {"scale_pos_weight": "1"}}
    if not source.classes:
        return {"name": "reg:squarederror"} | weight, "0E0"
    name = "binary:logistic" if source.has_probabilities else "binary:logitraw"
    return {"name": name} | weight, "5E-1" if source.has_probabilities else "0E0"


def _about(source: Source, columns: np.ndarray) -> dict[str, str]:
    about = {
        "model": source.model,
        "seq": str(source.seq),
        "etag": source.etag,
        "task": source.spec["task"],
        "features": _text(source.spec["features"]),
        "classes": _text(list(source.classes)),
    }
    if source.member is not None:
        about["member"] = source.member
    if source.is_hashed:
        about["indices"] = _text((columns + 1).tolist())
        about["names"] = _text(source.names(columns))
    return about


def _leaf(value: float, width: int) -> dict[str, Any]:
    """Tree 0: a constant."""
    nothing = np.array([_NONE], np.int64)
    return _tree(0, nothing, nothing, np.zeros(1), np.array([value]), np.zeros(1, np.int64), width)


def _tree(
    number: int,
    feature: np.ndarray,
    left: np.ndarray,
    threshold: np.ndarray,
    value: np.ndarray,
    positions: np.ndarray,
    width: int,
) -> dict[str, Any]:
    splits = np.flatnonzero(feature >= 0)
    n = int(left[splits].max(initial=_NONE)) + 2
    is_split = feature[:n] >= 0
    lefts = np.where(is_split, left[:n], _NONE)
    parents = np.full(n, _NO_PARENT)
    parents[left[splits]] = parents[left[splits] + 1] = splits
    conditions = np.where(is_split, _above(threshold[:n]), value[:n].astype(np.float32))
    zeros = [0.0] * n
    return {
        "base_weights": zeros,
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "default_left": (is_split & (threshold[:n] >= 0.0)).astype(int).tolist(),
        "id": number,
        "left_children": lefts.tolist(),
        "loss_changes": zeros,
        "parents": parents.tolist(),
        "right_children": np.where(is_split, lefts + 1, _NONE).tolist(),
        "split_conditions": [float(str(one)) for one in conditions.astype(np.float32)],
        "split_indices": np.where(is_split, positions[feature[:n]], 0).tolist(),
        "split_type": [0] * n,
        "sum_hessian": zeros,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(width),
            "num_nodes": str(n),
            "size_leaf_vector": "1",
        },
    }


def _above(thresholds: np.ndarray) -> np.ndarray:
    """The least float32 above each number."""
    near = thresholds.astype(np.float32)
    above: np.ndarray = np.where(
        near > thresholds, near, np.nextafter(near, np.float32(np.inf), dtype=np.float32)
    )
    return above


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()

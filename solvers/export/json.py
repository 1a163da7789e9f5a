"""`json` export: the complete form. Fields: docs/guides/export.md.

Features are counted from 1. Numbers are written such that reading them gives the same float64.
"""

from typing import Any

import msgspec
import numpy as np

from dualstream.solvers.export.refusals import refuse_nonlinear
from dualstream.solvers.export.source import Source, json_list
from dualstream.solvers.protocols import served_form


def write(source: Source) -> bytes:
    """Can express every linear form. Raises NotExpressible."""
    refuse_nonlinear(source.form)
    seen: list[np.ndarray] = [np.empty(0, np.int64)]
    form = _form(source.form, seen)
    return msgspec.json.encode(
        {
            "format": "dualstream-form",
            "format_version": 1,
            "model": source.model,
            "member": source.member,
            "seq": source.seq,
            "etag": source.etag,
            "task": source.spec["task"],
            "classes": list(source.classes) if source.classes else None,
            "has_probabilities": source.has_probabilities,
            "features": source.spec["features"],
            "names": source.names(np.unique(np.concatenate(seen))),
            "form": form,
        }
    )


def _form(form: served_form.Form, seen: list[np.ndarray]) -> dict[str, Any]:
    """`seen` receives the indices of all features in the form."""
    stages = []
    is_mapped = False
    for stage in form.stages:
        stages.append(_stage(stage, seen))
        is_mapped = is_mapped or isinstance(
            stage, served_form.FourierForm | served_form.NystroemForm
        )
    scores = [_score(score, [] if is_mapped else seen) for score in form.scores]
    return {"dim": form.dim, "stages": stages, "scores": scores}


def _stage(stage: served_form.StageForm, seen: list[np.ndarray]) -> dict[str, Any]:
    if isinstance(stage, served_form.BalancedForm):
        seen.append(stage.columns)
        fields = {
            "kind": "balanced",
            "power": stage.power,
            "moments": stage.moments,
            "rows": stage.rows,
            "indices": json_list(stage.columns + 1),
            "counts": json_list(stage.counts),
        }
        if stage.moments:
            fields |= {
                "means": json_list(stage.means),
                "deviations": json_list(stage.deviations),
                "dense": json_list(stage.dense),
            }
        if stage.limits is not None:
            low, high = stage.limits
            fields |= {"low": json_list(low), "high": json_list(high)}
        return fields
    if isinstance(stage, served_form.FourierForm):
        return {"kind": "fourier", "nu": stage.nu.tolist(), "beta": stage.beta.tolist()}
    if isinstance(stage, served_form.NystroemForm):
        rows = stage.landmarks
        landmarks = [
            {
                "indices": (rows.indices[begin:end] + 1).tolist(),
                "values": rows.values[begin:end].tolist(),
            }
            for begin, end in zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
        ]
        factor = [row[: i + 1].tolist() for i, row in enumerate(stage.factor)]
        return {
            "kind": "nystroem",
            "gamma": stage.gamma,
            "components": stage.components,
            "landmarks": landmarks,
            "factor": factor,
        }
    return _norm(stage)


def _norm(stage: served_form.NormForm) -> dict[str, Any]:
    if not stage.running:
        return {"kind": "row_norm"}
    return {"kind": "running_norm", "rows": stage.rows, "squares": stage.squares}


def _score(score: served_form.ScoreForm, seen: list[np.ndarray]) -> dict[str, Any]:
    if isinstance(score, served_form.Linear):
        seen.append(score.places)
        return {
            "kind": "linear",
            "indices": json_list(score.places + 1),
            "weights": json_list(score.weights),
            "intercept": score.intercept,
        }
    assert isinstance(score, served_form.Mixture), "others are refused"
    parts = [_part(part, seen) for part in score.parts]
    if isinstance(score, served_form.ClassMixture):
        return {
            "kind": "class_mixture",
            "largest_score": score.largest_score,
            "largest_log_odds": score.largest_log_odds,
            "parts": parts,
        }
    return {
        "kind": "number_mixture",
        "mean": score.mean,
        "low": score.low,
        "high": score.high,
        "parts": parts,
    }


def _part(part: served_form.Part, seen: list[np.ndarray]) -> dict[str, Any]:
    form = None if part.form is None else _form(part.form, seen)
    return {"name": part.name, "share": part.share, "a": part.a, "b": part.b, "form": form}

"""`sklearn-coef` export: the coefficients of a linear scikit-learn model, as JSON.

`coef_` is a sparse matrix in the CSR layout of scipy, (scores, dim), its columns from 0.
"""

import msgspec
import numpy as np

from dualstream.solvers.export.linear import one_weight_a_feature
from dualstream.solvers.export.source import Source, json_list


def write(source: Source) -> bytes:
    """Raises NotExpressible."""
    rows = one_weight_a_feature(source.form)
    ends = np.cumsum([0, *(len(row.places) for row in rows)])
    features = np.concatenate([row.places for row in rows])
    document = {
        "format": "dualstream-sklearn-coef",
        "format_version": 1,
        "model": source.model,
        "member": source.member,
        "seq": source.seq,
        "etag": source.etag,
        "estimator": "SGDClassifier" if source.classes else "SGDRegressor",
        "loss": _loss(source),
        "classes_": list(source.classes) if source.classes else None,
        "coef_": {
            "shape": [len(rows), source.form.dim],
            "indptr": ends.tolist(),
            "indices": json_list(features),
            "data": json_list(np.concatenate([row.weights for row in rows])),
        },
        "intercept_": [row.intercept for row in rows],
        "features": source.spec["features"],
        "names": source.names(np.unique(features)),
    }
    return msgspec.json.encode(document)


def _loss(source: Source) -> str:
    """The loss of SGDClassifier that gives the model's probabilities, or none."""
    if not source.classes:
        return "squared_error"
    return "log_loss" if source.has_probabilities else "hinge"

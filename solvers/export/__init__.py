"""Export formats: models as files for programs that score rows without this package.

source.py        what is exported: a form (protocols/served_form.py) and its labels and names
linear.py        forms that are one weight per feature
json.py          `json`: the complete form
sklearn_coef.py  `sklearn-coef`: coef_, intercept_ and classes_
vw.py            `vw`: a model file of Vowpal Wabbit
xgboost.py       `xgboost`: boosted trees as a model file of XGBoost
onnx_model.py    `onnx`: a graph; its nodes are in onnx_stages.py, onnx_scores.py (sums, mixtures)
                 and onnx_nonlinear.py
refusals.py      why a format has no nonlinear models

The same state gives the same bytes. A format that cannot express the model exactly raises
NotExpressible.
"""

from dualstream.solvers.export.formats import FORMATS, Format, MissingExtra
from dualstream.solvers.export.source import Source, source_of

__all__ = ["FORMATS", "Format", "MissingExtra", "Source", "source_of"]

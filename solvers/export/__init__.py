"""Export formats: models as files for programs that score rows without this package.

source.py        what is exported: a form (core/served_form.py) and its labels and names
linear.py        forms that are one weight per feature
json.py          `json`: the complete form
sklearn_coef.py  `sklearn-coef`: coef_, intercept_ and classes_
vw.py            `vw`: a model file of Vowpal Wabbit
onnx_model.py    `onnx`: a graph; onnx_stages.py: its nodes for stages and mixtures

The same state gives the same bytes. A format that cannot express the model exactly raises
NotExpressible.
"""

from dualstream.solvers.export.formats import FORMATS, Format, MissingExtra
from dualstream.solvers.export.source import Source, source_of

__all__ = ["FORMATS", "Format", "MissingExtra", "Source", "source_of"]

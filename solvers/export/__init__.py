"""Models for other programs: what a model serves, written so that these score rows as it does.

source.py        what is exported: a form (solvers/core/served_form.py) and what stands beside it
linear.py        forms that are one weight a feature, for programs that know nothing else
json_form.py     `json`: everything, for programs of one's own
sklearn_coef.py  `sklearn-coef`: coef_, intercept_ and classes_
vw.py            `vw`: a model file of Vowpal Wabbit
onnx_model.py    `onnx`: a graph; onnx_stages.py: its nodes for stages and mixtures

The same state gives the same bytes. A format that cannot say exactly what the model serves raises
NotExpressible.
"""

from dualstream.solvers.export.formats import FORMATS, Format, MissingExtra
from dualstream.solvers.export.source import Source, member_source, whole_source

__all__ = ["FORMATS", "Format", "MissingExtra", "Source", "member_source", "whole_source"]

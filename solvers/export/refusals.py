"""Why a format cannot express a nonlinear model, and which formats can."""

from dualstream.solvers.errors import NotExpressible
from dualstream.solvers.protocols import served_form

_NAMES = {
    served_form.Trees: "boosted trees",
    served_form.Curves: "splines",
    served_form.Neighbours: "nearest neighbours",
    served_form.Net: "a neural network",
}


def name_of(score: served_form.NonlinearScore) -> str:
    """What the score is, for messages."""
    return _NAMES[type(score)]


def formats_of(form: served_form.Form) -> str:
    """The formats that have this nonlinear model, for messages."""
    is_trees = (
        len(form.scores) == 1 and isinstance(form.scores[0], served_form.Trees) and not form.stages
    )
    return "`onnx` or `xgboost`" if is_trees else "`onnx`"


def refuse_nonlinear(form: served_form.Form) -> None:
    """Raise NotExpressible if the model is nonlinear, has a nonlinear member, or a stack."""
    for score in form.scores:
        if isinstance(score, served_form.NonlinearScore):
            raise NotExpressible(
                f"it is {name_of(score)}, not a sum of weights: export it as {formats_of(form)}"
            )
        if isinstance(score, served_form.Mixture):
            _refuse_mixture(score)


def _refuse_mixture(score: served_form.Mixture) -> None:
    others = "export the portfolio as `onnx`, or a linear member as `member`"
    for part in score.parts:
        for inner in () if part.form is None else part.form.scores:
            if isinstance(inner, served_form.Mixture):
                # A rule of a portfolio that has learned late labels.
                _refuse_mixture(inner)
            if isinstance(inner, served_form.NonlinearScore):
                raise NotExpressible(
                    f"its member {part.name!r} is {name_of(inner)}, not a sum of weights: {others}"
                )
    if score.stack is not None:
        raise NotExpressible(f"a stack combines its members: {others}")

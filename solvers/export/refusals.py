"""Why a format cannot express a nonlinear model, and which formats can."""

from dualstream.solvers.errors import NotExpressible
from dualstream.solvers.protocols.served_form import (
    Curves,
    Form,
    Mixture,
    Neighbours,
    Net,
    NonlinearScore,
    Trees,
)

_NAMES = {
    Trees: "boosted trees",
    Curves: "splines",
    Neighbours: "nearest neighbours",
    Net: "a neural network",
}


def name_of(score: NonlinearScore) -> str:
    """What the score is, for messages."""
    return _NAMES[type(score)]


def formats_of(form: Form) -> str:
    """The formats that have this nonlinear model, for messages."""
    is_trees = len(form.scores) == 1 and isinstance(form.scores[0], Trees) and not form.stages
    return "`onnx` or `xgboost`" if is_trees else "`onnx`"


def refuse_nonlinear(form: Form) -> None:
    """Raise NotExpressible if the model is nonlinear, has a nonlinear member, or a stack."""
    for score in form.scores:
        if isinstance(score, NonlinearScore):
            raise NotExpressible(
                f"it is {name_of(score)}, not a sum of weights: export it as {formats_of(form)}"
            )
        if isinstance(score, Mixture):
            _refuse_mixture(score)


def _refuse_mixture(score: Mixture) -> None:
    others = "export the portfolio as `onnx`, or a linear member as `member`"
    for part in score.parts:
        for inner in () if part.form is None else part.form.scores:
            if isinstance(inner, Mixture):
                # A rule of a portfolio that has learned late labels.
                _refuse_mixture(inner)
            if isinstance(inner, NonlinearScore):
                raise NotExpressible(
                    f"its member {part.name!r} is {name_of(inner)}, not a sum of weights: {others}"
                )
    if score.stack is not None:
        raise NotExpressible(f"a stack combines its members: {others}")

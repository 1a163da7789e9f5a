"""The specification of `algorithm: semiparametric`."""

from collections.abc import Mapping, Sequence
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.offline.refit_methods import SEMIPARAMETRIC_METHODS
from dualstream.solvers.spec_fields import (
    Spec,
    read_choice,
    read_kind,
    read_number,
    read_object,
    read_whole,
)

MAX_RETAIN = 20_000
"""Maximum rows of a window: beyond that, solving it takes hours."""
MAX_TERMS = 64
_LONGEST_NAME = 64
_POSITIVE = (1e-12, 1e12, "a number in [1e-12, 1e12]")

_KINDS: Mapping[str, tuple[str, ...]] = {
    "constant": (),
    "linear": ("feature",),
    "quadratic": ("feature",),
    "sine": ("feature", "period"),
    "cosine": ("feature", "period"),
    "sinc": ("feature", "period", "centre"),
}


def read_semiparametric(spec: Mapping[str, Any], task: str) -> Spec:
    """The fields of this algorithm, with every default written out."""
    if task != "regression":
        raise InvalidSpec("/task", task, "regression for this algorithm")
    features = spec["features"]
    if features["kind"] != "indexed":
        raise InvalidSpec("/features", features, "indexed: the basis refers to features by index")
    loss = read_kind(spec, "loss", "epsilon_insensitive", {"epsilon_insensitive": ("epsilon",)})
    loss["epsilon"] = read_number(loss, "/loss", "epsilon", 0.1, 0.0, 1e12, "a number in [0, 1e12]")
    return {
        "loss": loss,
        "basis": _basis(spec, features["dim"]),
        "gamma": read_number(spec, "", "gamma", 1.0 / features["dim"], *_POSITIVE),
        "C": read_number(spec, "", "C", 1.0, *_POSITIVE),
        "retain": read_whole(spec, "", "retain", 1000, 1, MAX_RETAIN),
        "refit": _refit(spec),
    }


def _basis(spec: Mapping[str, Any], dim: int) -> list[Spec]:
    """The terms, each with a name."""
    basis_field = spec.get("basis", ["constant"])
    if (
        not isinstance(basis_field, Sequence)
        or isinstance(basis_field, str)
        or len(basis_field) > MAX_TERMS
    ):
        shown = (
            f"{len(basis_field)} terms" if isinstance(basis_field, list | tuple) else basis_field
        )
        raise InvalidSpec("/basis", shown, f"a list of at most {MAX_TERMS} terms")
    terms: list[Spec] = []
    for index, one in enumerate(basis_field):
        owner = f"/basis/{index}"
        try:
            term = _term(one, dim)
        except InvalidSpec as error:
            raise error.under(owner) from None
        if any(term["name"] == other["name"] for other in terms):
            raise InvalidSpec(f"{owner}/name", term["name"], "a name that no earlier term has")
        terms.append(term)
    return terms


def _term(term_field: Any, dim: int) -> Spec:
    if isinstance(term_field, str):
        term_field = {"kind": term_field}
    if not isinstance(term_field, Mapping):
        raise InvalidSpec("", term_field, "a kind, or an object with kind")
    kind = read_choice(term_field, "kind", "", tuple(_KINDS))
    takes = _KINDS[kind]
    term = read_object(term_field, "", ("kind", "name", *takes), "an object with kind")
    arguments = []
    if "feature" in takes:
        term["feature"] = read_whole(term, "", "feature", None, 1, dim)
        arguments.append(str(term["feature"]))
    if "period" in takes:
        if "period" not in term:
            raise InvalidSpec("/period", None, _POSITIVE[2])
        term["period"] = read_number(term, "", "period", 0.0, *_POSITIVE)
        arguments.append(f"{term['period']:.12g}")
    if "centre" in takes:
        term["centre"] = read_number(
            term, "", "centre", 0.0, -1e12, 1e12, "a number in [-1e12, 1e12]"
        )
        arguments.append(f"{term['centre']:.12g}")
    name = term.get("name", f"{kind}({', '.join(arguments)})" if arguments else kind)
    if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME:
        raise InvalidSpec("/name", name, f"1 to {_LONGEST_NAME} characters")
    return {"kind": kind} | {field: term[field] for field in takes} | {"name": name}


def _refit(spec: Mapping[str, Any]) -> Spec | None:
    """The interval of automatic refits; null: manual refits only."""
    refit = spec.get("refit", {})
    if refit is None:
        return None
    takes = ("every", "method", "tol", "options")
    refit = read_object(refit, "/refit", takes, "null or an object with every")
    method = refit.get("method", SEMIPARAMETRIC_METHODS[0])
    if method not in SEMIPARAMETRIC_METHODS:
        raise InvalidSpec.not_one_of("/refit/method", method, SEMIPARAMETRIC_METHODS)
    read: Spec = {"options": refit["options"]} if "options" in refit else {}
    return read | {
        "every": read_whole(refit, "/refit", "every", 1000, 100, 1_000_000_000),
        "method": method,
        "tol": read_number(refit, "/refit", "tol", 1e-3, 1e-12, 1.0, "a number in [1e-12, 1]"),
    }

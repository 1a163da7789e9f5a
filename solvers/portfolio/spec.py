"""Specification of a portfolio and of its members."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.features.spec import read_scaling
from dualstream.solvers.nonlinear.spec import read_lags, read_memory
from dualstream.solvers.portfolio.presets import DEFAULT, Member, members_of, presets_of
from dualstream.solvers.protocols.learner import Learner
from dualstream.solvers.protocols.member_learner import MEMBER_NAME
from dualstream.solvers.rows.batch import MAX_DIM
from dualstream.solvers.rows.columns.spec import name_of
from dualstream.solvers.rows.intercept import width_of
from dualstream.solvers.spec_fields import (
    Spec,
    read_choice,
    read_flag,
    read_kind,
    read_number,
    read_whole,
    refuse_unknown,
    short_form,
)

REACH = 8.0
"""Limit of values for regression: see column_table.limit_entries."""
DEFAULT_LAGS = 3
"""Past targets that boosted members see."""
MAX_ONES = 8
"""Entries of a row that are combined for `pairs`: the first ones of value 1."""
PAIR_CELLS = 1 << 16
"""Indices of pairs, which bound the memory that they take."""
MAX_MEMBERS = 64
"""Maximum length of a list of members; a named prior does not count."""

_NAMES_ALLOWED = "1 to 64 characters of A-Z a-z 0-9 . _ -, beginning with a letter or digit"
_INPUT = ("scaling", "norm")
_FUSED_FIELDS: Mapping[str, tuple[str, ...]] = {
    "prior": (),
    "stack": (),
    "dual_ascent": ("loss", "strength", "schedule", *_INPUT),
    "spg_fixed_total": ("loss", "strength", *_INPUT),
    "adagrad": ("loss", "eta", *_INPUT),
    "diagonal_newton": ("loss", "gamma", *_INPUT),
}
_LOSSES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "binary": {"logistic": (), "hinge": (), "squared_hinge": (), "smooth_hinge": ("gamma",)},
    "regression": {"squared": (), "huber": ("delta",)},
}
_POSITIVE = "a number in [1e-12, 1e12]"
_IMPLIED = ("task", "features", "labels")

Resolver = Callable[[Mapping[str, Any]], Spec]
"""`spec.validate.resolve_model`, passed in because it reads portfolios itself."""


@dataclass(frozen=True, slots=True)
class ModelFactory:
    """Resolves and makes members that are models of any algorithm: see `spec/make_learner.py`."""

    resolve: Resolver
    make: Callable[[Mapping[str, Any]], Learner]


def read_portfolio(spec: Mapping[str, Any], task: str, resolve: Resolver) -> Spec:
    """The fields of `algorithm: portfolio`; members are resolved for the portfolio's features."""
    eta = 0.125 if task == "regression" else 0.5
    lags = read_lags(spec, task, DEFAULT_LAGS)
    members, memory = _members({**spec, "lags": lags}, task, resolve), read_memory(spec)
    if memory and members != DEFAULT:
        raise InvalidSpec("/memory", spec["memory"], f"left out unless members is {DEFAULT}")
    lags = read_lags(spec, task, _default_lags(task, members))
    return {
        "members": members,
        **memory,
        "eta": read_number(spec, "", "eta", eta, 1e-6, 1.0, "a number in [1e-6, 1]"),
        "share": read_number(spec, "", "share", 0.001, 0.0, 0.5, "a number in [0, 0.5]"),
        "retain": read_whole(spec, "", "retain", 1000, 1, 100_000),
        **({"lags": lags} if task == "regression" else {}),
        **_read_number_pairs(spec, task, members),
    }


def _read_number_pairs(spec: Mapping[str, Any], task: str, members: str | list[Member]) -> Spec:
    """Whether a preset gets a member with pairs of small whole numbers, see pairs.py."""
    if task == "regression" and members in ("fast", "full"):
        return {"number_pairs": read_flag(spec, "number_pairs", True)}
    if "number_pairs" in spec:
        allowed = "left out unless task is regression and members is fast or full"
        raise InvalidSpec("/number_pairs", spec["number_pairs"], allowed)
    return {}


def _default_lags(task: str, members: str | list[Member]) -> int:
    listed = members_of({"task": task, "members": members})
    return DEFAULT_LAGS if any(one.get("algorithm") == "boosted" for one in listed) else 0


def _members(spec: Mapping[str, Any], task: str, resolve: Resolver) -> str | list[Member]:
    names = tuple(presets_of(task))
    members_field = spec.get("members", DEFAULT)
    allowed = f"one of {', '.join(names)}, or a list of 1 to {MAX_MEMBERS} specs"
    if isinstance(members_field, str) and members_field in names:
        return members_field
    if not isinstance(members_field, list | tuple) or not 1 <= len(members_field) <= MAX_MEMBERS:
        shown = (
            f"{len(members_field)} specs"
            if isinstance(members_field, list | tuple)
            else members_field
        )
        raise InvalidSpec("/members", shown, allowed)
    members: list[Member] = []
    wrong: list[InvalidSpec] = []
    for index, one in enumerate(members_field):
        try:
            members.append(_listed_member(one, spec, f"/members/{index}", members, resolve))
        except InvalidSpec as error:
            wrong += error.violations
    stacks = [at for at, one in enumerate(members) if one.get("kind") == "stack"]
    if len(stacks) > 1:
        wrong.append(InvalidSpec(f"/members/{stacks[1]}/kind", "stack", "another: one is enough"))
    if wrong:
        wrong[0].violations = tuple(wrong)
        raise wrong[0]
    return members


def _listed_member(
    one: Any, whole: Mapping[str, Any], owner: str, earlier: list[Member], resolve: Resolver
) -> Member:
    if not isinstance(one, Mapping):
        raise InvalidSpec(owner, one, "an object")
    taken = [member["name"] for member in earlier]
    name = read_name(one, owner, taken)
    if name in taken:
        raise InvalidSpec(f"{owner}/name", name, "a name that no earlier member has")
    body = {field: value for field, value in one.items() if field != "name"}
    return {"name": name} | read_member(body, whole, owner, resolve)


def read_name(member: Mapping[str, Any], owner: str, taken: list[str]) -> str:
    """A member's `name`; the default is its kind and the first free number."""
    name = member.get("name")
    if name is None:
        kind = member.get("kind", member.get("algorithm", "dual_ascent"))
        number = 1
        while f"{kind}-{number}" in taken:
            number += 1
        return f"{kind}-{number}"
    if not isinstance(name, str) or not MEMBER_NAME.fullmatch(name):
        raise InvalidSpec(f"{owner}/name", name, _NAMES_ALLOWED)
    return name


def read_member(
    member: Mapping[str, Any], whole: Mapping[str, Any], owner: str, resolve: Resolver
) -> Member:
    """Resolve a member, without its name; `whole` is the portfolio's specification.

    With `kind` it is one of the kinds of presets.py. Otherwise it is the specification of a model
    whose task, features and labels are the portfolio's.
    """
    task = "regression" if whole.get("task") == "regression" else "binary"
    try:
        if _is_fused(member):
            return _read_fused(member, task, width_of(whole["features"]))
        return _read_model(member, whole, task, resolve)
    except InvalidSpec as error:
        if not owner:
            raise
        raise error.under(owner) from None


def _is_fused(member: Mapping[str, Any]) -> bool:
    """Whether the member is of a fused kind. O-DCA with a schedule is, even without `kind`."""
    if "kind" in member:
        return True
    return "schedule" in member and member.get("algorithm", "dual_ascent") == "dual_ascent"


def _read_fused(member: Mapping[str, Any], task: str, width: int) -> Member:
    if "kind" not in member:
        body = {field: value for field, value in member.items() if field != "algorithm"}
        member = {"kind": "dual_ascent"} | body
    kind = read_choice(member, "kind", "", tuple(_FUSED_FIELDS))
    fields = _FUSED_FIELDS[kind]
    takes = fields if task == "binary" or kind == "stack" else ("base", *fields)
    refuse_unknown(member, "", ("kind", *takes, *(("pairs",) if fields else ())))
    losses = _LOSSES[task]
    if kind == "diagonal_newton" and task == "binary":
        losses = {"logistic": ()}
    readers: dict[str, Any] = {
        "base": lambda: read_choice(member, "base", "mean", ("mean", "last")),
        "loss": lambda: _read_loss(member, losses),
        "strength": lambda: _read_positive(member, "strength", 30.0),
        "schedule": lambda: read_choice(
            member, "schedule", "constant", ("constant", "inverse_sqrt")
        ),
        "eta": lambda: _read_positive(member, "eta", 0.5),
        "gamma": lambda: read_number(member, "", "gamma", 1.0, 0.0, 1.0, "a number in [0, 1]"),
        "scaling": lambda: read_scaling({"scaling": member.get("scaling", "balanced")}),
        "norm": lambda: read_choice(member, "norm", "none", ("none", "row", "running")),
    }
    pairs = _read_pairs_of_member(member, width)
    return {"kind": kind} | {name: readers[name]() for name in takes} | pairs


def _read_pairs_of_member(member: Mapping[str, Any], width: int) -> Spec:
    pairs = member.get("pairs", False)
    if isinstance(pairs, list | tuple):
        are_whole = all(isinstance(one, int) and not isinstance(one, bool) for one in pairs)
        is_sound = are_whole and 2 <= len(pairs) <= MAX_ONES and sorted(set(pairs)) == [*pairs]
        if not is_sound or pairs[0] < 0 or pairs[-1] >= width:
            allowed = f"true, false, or 2 to {MAX_ONES} indices of features in increasing order"
            raise InvalidSpec("/pairs", list(pairs), allowed)
        pairs = list(pairs)
    else:
        pairs = read_flag(member, "pairs", False)
    if pairs is not False and width > MAX_DIM - PAIR_CELLS:
        raise InvalidSpec("/pairs", pairs, "false, as there is no index left for a pair")
    return {} if pairs is False else {"pairs": pairs}


def _read_loss(member: Mapping[str, Any], kinds: Mapping[str, tuple[str, ...]]) -> str | Spec:
    loss = read_kind(member, "loss", next(iter(kinds)), kinds)
    if len(kinds[loss["kind"]]):
        (name,) = kinds[loss["kind"]]
        loss[name] = read_number(loss, "/loss", name, 1.0, 1e-12, 1e12, _POSITIVE)
    return short_form(loss)


def _read_positive(member: Mapping[str, Any], name: str, default: float) -> float:
    return read_number(member, "", name, default, 1e-12, 1e12, _POSITIVE)


def _read_model(
    member: Mapping[str, Any], whole: Mapping[str, Any], task: str, resolve: Resolver
) -> Member:
    if member.get("algorithm") == "portfolio":
        raise InvalidSpec(
            "/algorithm", "portfolio", "another algorithm: portfolios cannot be nested"
        )
    if member.get("algorithm") == "semiparametric":
        allowed = "another: members are not refitted, and semiparametric learns only by refits"
        raise InvalidSpec("/algorithm", "semiparametric", allowed)
    if member.get("guard") not in (None, "off"):
        raise InvalidSpec("/guard", member["guard"], "left out: set the guard on the portfolio")
    implied = {"task": task, "features": whole["features"]}
    for name, value in implied.items():
        if name in member and member[name] != value:
            raise InvalidSpec(f"/{name}", member[name], f"left out, or the portfolio's: {value}")
    if member.get("labels") is not None:
        raise InvalidSpec("/labels", member["labels"], "left out: labels are set on the portfolio")
    if member.get("refit") is not None:
        raise InvalidSpec("/refit", member["refit"], "left out: members are not refitted")
    algorithm = {"algorithm": "dual_ascent"} | dict(member) | implied
    if algorithm["algorithm"] == "boosted" and task == "regression":
        # The window must fit together with the past targets of the portfolio.
        algorithm = {"lags": whole["lags"]} | algorithm
    resolved = resolve(algorithm)
    resolved = {name: value for name, value in resolved.items() if name not in (*_IMPLIED, "lags")}
    # Its own are written out, 0 too: see model_spec.
    return resolved | (
        {"lags": member["lags"]} if "lags" in member and task == "regression" else {}
    )


def reach_of(whole: Mapping[str, Any]) -> float:
    """The limit of values in deviations of their column; 0 stands for no limit (classes)."""
    return REACH if whole["task"] == "regression" else 0.0


def read_pairs(
    spec: Mapping[str, Any], columns: Spec | None, crosses: list[Any], model: Mapping[str, Any]
) -> Spec:
    """The field `pairs` of flat rows: whether a preset has members with pairs, see pairs.py.

    The default is to have them if there are categories, but no more than are combined, and no
    crosses, which are combinations already.
    """
    if columns is None or model.get("members") not in ("fast", "full"):
        if spec.get("pairs"):
            allowed = "left out unless members is fast or full and rows have `columns`"
            raise InvalidSpec("/pairs", spec["pairs"], allowed)
        return {}
    kinds = [name_of(kind) for kind in columns["types"].values()]
    default = not crosses and 2 <= kinds.count("category") <= MAX_ONES
    return {"pairs": read_flag(spec, "pairs", default)}


def model_spec(member: Mapping[str, Any], whole: Mapping[str, Any]) -> Spec:
    """The specification of the model for a resolved member without `kind`."""
    body = {field: value for field, value in member.items() if field != "name"}
    if body["algorithm"] == "boosted" and whole.get("lags"):
        body = {"lags": whole["lags"]} | body
    return body | {"task": whole["task"], "features": dict(whole["features"])}

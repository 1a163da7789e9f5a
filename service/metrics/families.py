"""Metric families with one series for each model."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from dualstream.service.models.model import Model
from dualstream.service.replica.replica import Replica

FamilyKind = type[GaugeMetricFamily] | type[CounterMetricFamily]


class Family(NamedTuple):
    """A metric family with the label model."""

    kind: FamilyKind
    text: str
    labels: tuple[str, ...] = ()
    """Labels besides the model."""


class Put(Protocol):
    """Adds a value of one model to a family."""

    def __call__(self, name: str, value: float | None, *labels: str) -> None: ...


class ModelFamilies(NamedTuple):
    """Families by name, and the function that puts the values of a model."""

    families: Mapping[str, Family]
    measure: Callable[[Replica, Put], None]


class ReportFamilies(NamedTuple):
    """Gauges of a model that one worker computes and reports to the others: the newest count."""

    families: Mapping[str, str]
    """Texts by name. The last family is the age of the values."""
    measure: Callable[[Model], tuple[float, ...] | None]

"""Feature: an optional part of the server."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter

from dualstream.service.metrics.families import ModelFamilies, ReportFamilies
from dualstream.service.models.job import Job
from dualstream.service.replica.features import ReplicaFeature


@dataclass(frozen=True, kw_only=True, eq=False)
class Feature(ReplicaFeature):
    """What a feature adds to the process. Its module or package ends with one as `FEATURE`."""

    jobs: Sequence[type[Job]] = ()
    """Jobs that a model starts by itself when they are due."""
    routers: Sequence[APIRouter] = ()
    refuses_unknown_parameters: bool = True
    """Do the routes answer 422 for a query parameter that they do not declare?"""
    series: ModelFamilies | None = None
    """Metrics of the state, equal in every worker."""
    series_setting: str | None = None
    """The setting without which a server has no such metrics."""
    reports: ReportFamilies | None = None
    """Metrics of what one worker computes."""


def jobs_of(features: Sequence[Feature]) -> list[type[Job]]:
    """The kinds of jobs that models start by themselves."""
    return [job for feature in features for job in feature.jobs]

"""Profile of the columns of a stream: counts, moments, frequent values, and drift of the input."""

from dualstream.solvers.profile.column import MODERATE, Column
from dualstream.solvers.profile.names import ColumnNames
from dualstream.solvers.profile.profile import ColumnProfile

__all__ = ["MODERATE", "Column", "ColumnNames", "ColumnProfile"]

"""Columns: rows as people have them, declared in a specification, become features.

spec.py     the fields `columns` and `crosses` of a specification
values.py   one value of a column: numbers, booleans, categories, texts, times
tables.py   rows of DataFrames and Arrow tables, as JSON has them
reader.py   ColumnReader: a flat row becomes features, label, weight and id
plan.py     ColumnPlan: the same columns as arrays, which the kernels in text/flat/ read
letters.py  letters and lower case as a table, for the kernels
"""

from dualstream.solvers.rows.columns.reader import ColumnReader
from dualstream.solvers.rows.columns.values import BadColumn

__all__ = ["BadColumn", "ColumnReader"]

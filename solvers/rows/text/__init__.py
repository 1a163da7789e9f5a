"""Kernels that parse rows from text: LIBSVM, JSON, CSV and Vowpal Wabbit.

tokens.py       shared: numbers, names, labels, the end of a row
name_cache.py   cache of names and text values that were parsed before
name_order.py   order of new names by the entries of rows
json.py         samples in lines or in a list, and columns
csv.py          records of fields
vw.py           lines of Vowpal Wabbit's format
libsvm.py       LIBSVM text to columns
flat/           flat rows of models with `columns`, in JSON and CSV
count_lines.py  number of lines
index_table.py  a set of indices that kernels can look up

Except for LIBSVM, each parser reads the common forms only. It stops at the first line that is not,
and returns where; the service parses that line with a slower, complete parser.
"""

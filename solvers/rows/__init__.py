"""Rows: the batch that kernels read, and what turns text, tables and names into it."""

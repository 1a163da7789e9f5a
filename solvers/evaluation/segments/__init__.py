"""Progressive metrics by the values of a column: in which segment a model fails."""

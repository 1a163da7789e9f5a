"""Names of the algorithms of solvers/nonlinear. Importing them compiles no kernel."""

NONLINEAR = ("boosted", "net", "neighbours", "splines")
"""They have no weight for each feature."""
SHARED = ("boosted", "net", "neighbours")
"""Those that score all classes of a multiclass model at once."""

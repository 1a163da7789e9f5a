"""Code shared by all learners: rows, losses, windows, states, certificates."""

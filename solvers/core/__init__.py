"""What all learners share: rows, losses, windows, states, certificates."""

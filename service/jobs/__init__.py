"""Background jobs: of one model (refits, rollbacks, clean-ups) and of the process."""

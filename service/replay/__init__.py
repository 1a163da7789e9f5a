"""`dualstream replay`: a model at an earlier seq, or under another specification. Read-only."""

"""The Dualstream server: HTTP in front of a journal in front of the learners."""

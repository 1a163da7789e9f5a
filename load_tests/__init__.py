"""What Dualstream costs, always as a ratio to a peer measured in the same run."""

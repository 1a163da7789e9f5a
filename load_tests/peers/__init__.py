"""What a user would have written instead."""

"""The demonstration: UCI Adult streamed through a real server."""

"""Demo: streams UCI Adult through a real server."""

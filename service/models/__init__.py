"""The models in this process: registry, cache, versions, waiting requests."""

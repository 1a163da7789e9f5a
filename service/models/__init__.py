"""The models in this process: registry, cache, loader, versions, waiting requests."""

"""The models in this process: registry, cache, loader, versions, admission control."""

"""The machine that this runs on: threads, a container's limits, a cache and model files on disk."""

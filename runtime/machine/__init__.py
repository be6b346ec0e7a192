"""The machine that this runs on: its threads, its container's limits, a cache and model files on its disk."""

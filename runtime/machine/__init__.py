"""The machine that this runs on: its threads, its container's limits, a cache on its disk."""

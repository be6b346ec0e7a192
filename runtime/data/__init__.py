"""The data that floors hand each other: requests, steps, results. No torch."""

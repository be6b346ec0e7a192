"""Strict stand-ins for the kernel libraries.

Each enforces its library's checks, leaves undefined what the library leaves undefined (NaN), and
computes the right numbers from the same metadata. Signatures equal `signatures.json`, which is made
from the real sources.
"""

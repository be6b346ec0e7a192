"""The command line: `stepgraph`, the same as `python -m runtime`. One file per command."""

"""What `stepgraph bench` and the scripts of tools/ share: datasets, arrivals, a client in this
process, metrics, charts."""

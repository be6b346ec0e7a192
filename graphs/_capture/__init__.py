"""What captured modes share: the pool, the rules of capture, memory and reports."""

"""Models of the peak memory of a pass."""

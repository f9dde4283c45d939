"""What fits into the device: sizes, limits, measured profiles, and the watch over running passes."""

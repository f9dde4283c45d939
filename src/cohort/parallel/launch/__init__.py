"""Ranks that a launcher such as torchrun has started, on one host or several."""

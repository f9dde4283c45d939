"""Streamed answers that a process of their own writes to their connections, next to the one that computes."""

"""Copies of states between a GPU and the host, while trials train."""

"""Serving a model that is divided over ranks: rank 0 has the engine and tells the others what to compute."""

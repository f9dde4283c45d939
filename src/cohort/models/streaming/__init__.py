"""Frozen layers that are not resident: their bytes are fetched into a few buffers while other layers compute."""

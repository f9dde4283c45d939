"""Tokens become text, as they come and up to a stop string."""

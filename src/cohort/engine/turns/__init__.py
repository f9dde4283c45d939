"""Turns on one base model: which thread computes with it next, and whose trials step then."""

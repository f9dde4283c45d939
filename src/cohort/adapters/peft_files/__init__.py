"""Adapters as files: PEFT's format written and read, checked against a model, merged into it."""

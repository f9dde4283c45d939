"""The HTTP edge: an OpenAI-compatible server for a base model and its adapters."""

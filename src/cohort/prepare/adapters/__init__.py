"""The adapters that a task asks for: their specs, and what is wrong with them before anything trains."""

"""Workers of a queue: the process itself, and what the dispatcher knows of it, hears from it and tells it."""

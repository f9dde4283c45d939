"""Jobs: what a client asks for becomes a task, runs through the queue, and its record is mirrored for the client."""

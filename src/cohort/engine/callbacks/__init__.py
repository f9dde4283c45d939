"""What the caller's own functions are told of a run between two steps, and what they may ask for there."""

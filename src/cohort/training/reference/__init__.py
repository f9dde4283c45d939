"""What trials are held to: the answers of a frozen model, or of an adapter on it."""

"""Training that clients drive call by call: their operations in order, packed into shared passes."""

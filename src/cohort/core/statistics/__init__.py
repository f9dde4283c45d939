"""Numbers that were measured on rows, and the intervals that their true values lie in."""

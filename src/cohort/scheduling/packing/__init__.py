"""Which trials train together, at what degree, on which GPUs, when: the offline packing planner and its checker."""

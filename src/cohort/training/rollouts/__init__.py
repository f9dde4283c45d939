"""Training on answers that trials have just given: what a step holds, and the passes that train on it."""

"""A run's checkpoints: states of trials outside the bank (parked, checkpointed, best so far), and which are kept."""

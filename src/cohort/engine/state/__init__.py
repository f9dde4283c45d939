"""States of trials outside the bank: parked, checkpointed, best so far."""

"""One base model in memory for all uses: its memory, and the tasks that train on it while others use it."""

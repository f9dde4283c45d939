"""The rows of a task: read and tokenised by the run, or by another process ahead of it."""

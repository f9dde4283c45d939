"""What a trial minimises."""

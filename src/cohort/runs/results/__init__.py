"""What a run says when it is read: its tables, results, comparisons and their verdicts."""

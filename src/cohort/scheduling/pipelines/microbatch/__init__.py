"""Which samples of which adapters pass a pipeline together, and in what order."""

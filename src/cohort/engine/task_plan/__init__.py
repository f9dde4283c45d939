"""Plans of several tasks before anything runs: estimated, placed, drawn, and simulated with early exits."""

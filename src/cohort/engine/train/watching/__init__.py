"""What a run tells its watchers while it trains, and records of its own time."""

"""One run on disk: its directory, lock, database and results. Needs no torch."""

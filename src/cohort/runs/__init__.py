"""One run on disk: its directory, lock, database, results and report. Needs no torch."""

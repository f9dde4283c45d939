"""Models of seconds: hardware by name, steps, packs and whole tasks."""

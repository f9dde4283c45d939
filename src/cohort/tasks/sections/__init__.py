"""The sections of a task file, each a model of its keys with the checks that need nothing else."""

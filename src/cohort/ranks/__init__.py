"""One task on several GPUs: a process for each, which the user's process commands."""

"""Predict what a task will take before it runs: GPUs, seconds and memory."""

"""Kernels are compiled before the first pass that needs them: README.md says why, and what it saves."""

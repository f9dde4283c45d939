"""The samplers, one file each. A new one is a file here with its ``SAMPLER``."""

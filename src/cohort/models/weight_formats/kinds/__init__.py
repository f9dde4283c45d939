"""The formats of frozen weights, one file each; a new one is a file here with its ``DECLARATION`` and ``FORMAT``."""

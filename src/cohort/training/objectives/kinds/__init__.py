"""The objectives, one file each. A new one is a file here with its ``DECLARATION`` and its ``OBJECTIVE``."""

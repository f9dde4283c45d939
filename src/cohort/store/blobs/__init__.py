"""Bytes of files, adapters and checkpoints, in a folder or in object storage."""

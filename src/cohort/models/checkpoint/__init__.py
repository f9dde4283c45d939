"""The files of a checkpoint: found, checked against the layout, read, and kept quantised for the next load."""

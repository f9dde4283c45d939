"""A model in stages: where it is cut, in which order a stage works, and how long it idles."""

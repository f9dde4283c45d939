"""Work off several task files on the workers of a machine or a cluster."""

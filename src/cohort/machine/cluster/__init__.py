"""Where workers run: processes of this machine, or actors of a Ray cluster, behind one protocol."""

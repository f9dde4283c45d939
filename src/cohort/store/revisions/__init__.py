"""The steps by which a database came to its present tables, one file each, in the order of their numbers."""

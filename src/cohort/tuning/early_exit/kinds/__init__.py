"""The exit rules, one file each. A new one is a file here with its ``EXIT_RULE``; what rules share is one level up."""

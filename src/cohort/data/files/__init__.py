"""From what the user gave to typed examples: sources, rows of files, their formats, and each row parsed."""

"""What a user asks for: task files and their Python form, read, validated and resolved. Pydantic lives here only."""

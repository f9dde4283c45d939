"""Pages over runs: what they did, what they do now, and what a person may change. Files in, HTML and JSON out."""

"""Jobs: their states, who may run them, what happened to them, and what came out."""

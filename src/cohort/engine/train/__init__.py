"""What happens between two optimizer steps of a run: trials come and go, are evaluated, decided about and recorded."""

"""What a verb shows on its terminal while it works or watches."""

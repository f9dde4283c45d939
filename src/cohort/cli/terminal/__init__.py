"""What a verb shows on its terminal, and what it does when the terminal goes away."""

"""What is drawn on the terminal: tables that fit its width, bars, and views that are redrawn."""

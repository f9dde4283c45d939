"""What every request passes: its key, its rate and its size; and the errors that it is answered with."""

"""What people and callbacks ask of the trials of a run: taken up, checked, carried out, answered."""

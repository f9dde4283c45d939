"""The processes of a task's ranks: started here, or by a launcher such as torchrun on one host or several."""

"""A frozen product in which a row's bits do not depend on the rows around it, on a GPU."""

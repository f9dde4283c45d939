"""How an adapter is made to fit another form: what its inputs look like, and training it to answer like the first."""

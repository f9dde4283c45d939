"""What a server of clients' models writes down so that a kill loses nothing that it has acknowledged."""

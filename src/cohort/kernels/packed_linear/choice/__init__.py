"""Which tiles and which order of products a packed linear uses."""

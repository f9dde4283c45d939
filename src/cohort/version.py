"""The version, alone in a file so that the build reads it without importing the package."""

__all__ = ["__version__"]

__version__ = "0.1.0"

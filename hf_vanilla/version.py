"""The version, where building the package can read it without importing torch."""

__version__ = "0.1.0"

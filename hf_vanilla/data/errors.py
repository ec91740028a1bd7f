"""The one error for data that the user has to fix: its message names the file, the line and the value."""


class InvalidDataError(ValueError):
    """Data that cannot be used as it is."""

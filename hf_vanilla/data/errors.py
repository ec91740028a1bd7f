"""The one error for input that somebody has to mend: it names the file, the line and the value."""


class InvalidDataError(ValueError):
    """Data that cannot be used as it is."""

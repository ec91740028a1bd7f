"""Data that the user has to fix, which is an error, or should look at: the message names file, line and value."""


class InvalidDataError(ValueError):
    """Data that cannot be used as it is."""


class TextWarning(UserWarning):
    """A text is not used exactly as it is given. The message says which and why."""

"""The error of whatever shares, converts or serves a model: one line that says what to do next."""


class InteropError(ValueError):
    """A model, an export or a checkpoint that cannot be shared or converted as it is."""

"""A trained model and lines to lines."""

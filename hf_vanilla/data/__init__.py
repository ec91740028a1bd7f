"""Text to batches. Knows no model."""

"""Hypotheses and references to a report. Knows no model."""

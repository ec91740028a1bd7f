"""Attention and states of a model as numbers, pictures and pages."""

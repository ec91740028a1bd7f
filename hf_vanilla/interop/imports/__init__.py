"""Checkpoints of other toolkits into run directories: one file for each toolkit, and what they have in common."""

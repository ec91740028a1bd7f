"""Recipe to run directory."""

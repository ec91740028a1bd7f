"""The model over HTTP, and a page for people."""

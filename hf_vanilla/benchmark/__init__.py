"""This package and its peers, side by side on the same machine in the same run."""

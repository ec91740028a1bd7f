"""Tests of exports have the models with tokenizers that tests of inference have."""

from inference.conftest import make_translator, run

__all__ = ["make_translator", "run"]

"""Attention and states of a model as numbers, pictures and pages."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention import Attention, attend
    from .masking import Head, without_heads
    from .reading import Maps, maps_of

PLACES = {
    "Attention": "attention",
    "Head": "masking",
    "Maps": "reading",
    "attend": "attention",
    "maps_of": "reading",
    "without_heads": "masking",
}
"""Which module each public name is in. No name here may be that of a module."""

__all__ = ["Attention", "Head", "Maps", "attend", "maps_of", "without_heads"]


def __getattr__(name: str) -> Any:
    """Imported when it is asked for, as most who import this package want one of them."""
    if name in PLACES:
        return getattr(import_module(f"{__name__}.{PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

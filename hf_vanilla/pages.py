"""Pages: what a text may not do in them, and the hashes by which a Content-Security-Policy allows their own scripts."""

import base64
import hashlib
import re
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

INVISIBLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\ufffe\uffff]"
)
"""Characters that cannot be seen, are not allowed in HTML, or change the direction of what stands beside them."""


def rendered(template: str, **values: Any) -> str:
    """The page that a template makes of these values: escaped, unless they are `Markup`."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["visible"] = visible
    return environment.from_string(template).render(**values)


def hash_of(text: str) -> str:
    """How a Content-Security-Policy names a style or a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def visible(text: str) -> Markup:
    """Text for the page: escaped, and with names in place of characters that cannot be shown."""
    named = INVISIBLE.sub(lambda found: f"<span class=named>U+{ord(found[0]):04X}</span>", str(escape(text)))
    return Markup(named)  # noqa: S704 - it has been escaped

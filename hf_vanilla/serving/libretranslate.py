"""
LibreTranslate's requests and answers, as its clients write and read them (https://libretranslate.com/docs).

There is one pair of languages, none is detected, and only plain text is translated.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import parse_qs

from ..inference.languages import UNKNOWN_SOURCE, Languages
from ..inference.translator import Hypothesis
from .batcher import Wanted
from .engine import Drawn
from .limits import Limits

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


class RequestError(ValueError):
    """A request that is refused, with the status of HTTP and one sentence."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class TranslationRequest:
    """
    What `/translate` is asked for.

    Args:
        is_list: Whether the client gave a list, and so wants one.
        source: As the client named it.
        has_attention: Whether to say where each translation looked, which only our own page asks for.
    """

    texts: list[str]
    is_list: bool
    source: str
    alternatives: int
    has_attention: bool = False

    @property
    def lines(self) -> list[list[str]]:
        """The lines of each text: models are trained on sentences, and each line is translated alone."""
        return [[line.removesuffix("\r") for line in text.split("\n")] for text in self.texts]

    @property
    def filled(self) -> list[str]:
        """Those that are to be translated."""
        return [line for lines in self.lines for line in lines if line.strip()]

    @property
    def wanted(self) -> Wanted:
        """Of each line."""
        has_single_lines = any(sum(bool(line.strip()) for line in lines) == 1 for lines in self.lines)
        return Wanted(1 + self.alternatives, self.has_attention) if has_single_lines else Wanted()


def fields_of(content_type: str, body: bytes) -> dict[str, Any]:
    """What a body in JSON or from a form says."""
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == JSON:
            found = json.loads(body.decode())
            if not isinstance(found, dict):
                raise RequestError(f"Invalid request: the body must be a JSON object, not {type(found).__name__}")
            return found
        if kind == FORM:
            values = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=2_000, errors="strict")
            return {name: each if len(each) > 1 else each[0] for name, each in values.items()}
    except (ValueError, RecursionError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"Invalid request: the body cannot be read as {kind}") from None
    raise RequestError(f"Invalid request: the body must be {JSON} or {FORM}", 415)


def translation_request(fields: dict[str, Any], languages: Languages, limits: Limits) -> TranslationRequest:
    """What these fields ask for. Raises RequestError where it cannot be done."""
    texts = _texts(fields, limits)
    source, target = _text(fields, "source", UNKNOWN_SOURCE), _text(fields, "target")
    for given, known in ((source, {languages.source, UNKNOWN_SOURCE}), (target, {languages.target})):
        if given not in known:
            raise RequestError(f"{given:.40} is not supported: this server translates {_pair(languages)}")
    kind = _text(fields, "format", "text")
    if kind != "text":
        raise RequestError(f"{kind:.40} format is not supported: only text is")
    has_attention = fields.get("attention") is True
    return TranslationRequest(
        texts, isinstance(fields["q"], list), source, _alternatives(fields, limits), has_attention
    )


def translation_answer(
    request: TranslationRequest, found: Sequence[list[Hypothesis]], languages: Languages
) -> dict[str, Any]:
    """
    The answer of `/translate`, made of the translations of `request.filled`.

    Beside what LibreTranslate has, `scores` are those of the translation and its alternatives, and `attention` says
    where each of them looked.
    """
    remaining = iter(found)
    texts, alternatives, scores, pictures = [], [], [], []
    for lines in request.lines:
        each = [next(remaining) if line.strip() else [Hypothesis(line)] for line in lines]
        texts.append("\n".join(hypotheses[0].text for hypotheses in each))
        others = _distinct(each, lines, 1 + request.alternatives)
        alternatives.append([other.text for other in others[1:]])
        scores.append([other.score for other in others])
        pictures.append([asdict(each.picture) if isinstance(each, Drawn) and each.picture else None for each in others])
    answer: dict[str, Any] = {"translatedText": texts}
    if request.alternatives:
        answer |= {"alternatives": alternatives, "scores": scores}
    if request.has_attention:
        answer |= {"attention": pictures}
    if request.source == UNKNOWN_SOURCE:  # nothing is detected: it is the only one there is
        answer["detectedLanguage"] = [{"confidence": 0.0, "language": languages.source}] * len(texts)
    return answer if request.is_list else {name: each[0] for name, each in answer.items()}


def language_list(languages: Languages) -> list[dict[str, Any]]:
    both = dict.fromkeys((languages.source, languages.target))
    return [
        {"code": code, "name": code, "targets": [languages.target] if code == languages.source else []} for code in both
    ]


def detection(languages: Languages) -> list[dict[str, Any]]:
    """Nothing is detected: it is the only language that there is, and a confidence of 0 says so."""
    return [{"confidence": 0.0, "language": languages.source}]


def frontend_settings(languages: Languages, limits: Limits) -> dict[str, Any]:
    named = {
        "source": {"code": languages.source, "name": languages.source},
        "target": {"code": languages.target, "name": languages.target},
    }
    return {
        "apiKeys": False,
        "charLimit": limits.max_characters,
        "filesTranslation": False,
        "frontendTimeout": 500,
        "keyRequired": False,
        "language": named,
        "suggestions": False,
        "supportedFilesFormat": [],
    }


def _distinct(each: Sequence[list[Hypothesis]], lines: Sequence[str], number: int) -> list[Hypothesis]:
    """
    The translations of a text with a single line, each text once; none of a text with several, as the second best of
    each is not the second best of all.
    """
    places = [place for place, line in enumerate(lines) if line.strip()]
    if len(places) != 1:
        return []
    found: dict[str, Hypothesis] = {}
    for hypothesis in each[places[0]][:number]:
        text = "\n".join(hypothesis.text if place in places else line for place, line in enumerate(lines))
        found.setdefault(text, replace(hypothesis, text=text))
    return list(found.values())


def _texts(fields: dict[str, Any], limits: Limits) -> list[str]:
    q = fields.get("q")
    if q is None:
        raise RequestError("Invalid request: missing q parameter")
    texts = q if isinstance(q, list) else [q]
    if not all(isinstance(text, str) for text in texts):
        raise RequestError("Invalid request: q must be a text or a list of texts")
    if len(texts) > limits.max_texts:
        raise RequestError(f"Invalid request: {len(texts):,} texts exceed the limit of {limits.max_texts:,}")
    characters = sum(map(len, texts))
    if characters > limits.max_characters:
        raise RequestError(f"Invalid request: request ({characters}) exceeds text limit ({limits.max_characters})")
    return texts


def _text(fields: dict[str, Any], name: str, usual: str | None = None) -> str:
    value = fields.get(name, usual)
    if value is None:
        raise RequestError(f"Invalid request: missing {name} parameter")
    if not isinstance(value, str):
        raise RequestError(f"Invalid request: {name} must be a text")
    return value


def _alternatives(fields: dict[str, Any], limits: Limits) -> int:
    value = fields.get("alternatives") or 0
    is_number = type(value) is int or (isinstance(value, str) and value.isascii() and value.isdecimal())
    if not is_number or not 0 <= int(str(value)[:9]) <= limits.max_alternatives:
        raise RequestError(f"Invalid request: alternatives must be a number from 0 to {limits.max_alternatives}")
    return int(value)


def _pair(languages: Languages) -> str:
    return f"{languages.source} to {languages.target}"

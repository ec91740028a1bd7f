"""How much a client may ask for."""

from dataclasses import dataclass

BYTES_OF_A_CHARACTER = 12  # in JSON, a character beyond the first 65,536 may be written as \ud83d\ude00
BYTES_BESIDE_THE_TEXT = 16_384


@dataclass(frozen=True)
class Limits:
    """
    What one request, and all that wait, may take.

    Args:
        max_characters: Of all texts of a request together.
        max_texts: Of a request.
        max_alternatives: Of each text, beside the best translation.
        max_waiting: Requests that wait for their turn. Others are told to come again.
        seconds: From the first byte of a request to its answer.
    """

    max_characters: int = 10_000
    max_texts: int = 1_000
    max_alternatives: int = 9
    max_waiting: int = 128
    seconds: float = 30.0

    @property
    def max_body_bytes(self) -> int:
        return BYTES_OF_A_CHARACTER * self.max_characters + BYTES_BESIDE_THE_TEXT

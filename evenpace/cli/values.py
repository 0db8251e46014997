"""Readers of options' values that are text."""


def whole_number(text: str) -> int:
    """Read a whole number from 0 (ValueError: the text is no such number)."""
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{text!r}: must be a whole number from 0")
    return int(text)


def positive_number(text: str) -> int:
    """Read a whole number from 1 (ValueError: the text is no such number)."""
    number = whole_number(text)
    if not number:
        raise ValueError(f"{text!r}: must be a whole number from 1")
    return number

"""Rows of the CSV files that the lab reads, with errors that name file, line and column.

A gzipped file is unpacked. This module must not know what any column means.
"""

import csv
import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True)
class Row:
    """Row of a CSV file, with its line number for messages."""

    path: Path
    line: int
    values: dict[str, str]

    def error(self, column: str, what: str) -> ValueError:
        """Return the error that a column's value is not allowed, with what is."""
        return ValueError(f"{self.path}, line {self.line}: {column} {self.values[column]!r}: {what}")

    def text(self, column: str) -> str:
        """Return a text (ValueError: it is empty)."""
        if not self.values[column]:
            raise self.error(column, "must not be empty")
        return self.values[column]

    def integer(self, column: str, least: int = 0) -> int:
        """Return a whole number from `least`, itself from 0 (ValueError: the value is no such number)."""
        text = self.values[column]
        if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) >= least):  # fits 64 bits
            raise self.error(column, f"must be a whole number from {least}")
        return int(text)

    def number(self, column: str, most: float = math.inf) -> float:
        """Return a finite number from 0 to `most` (ValueError: the value is no such number)."""
        value = self._float(column)
        if not 0 <= value <= most or math.isinf(value):
            limit = f"a number from 0 to {most:g}" if math.isfinite(most) else "a number, at least 0"
            raise self.error(column, f"must be {limit}")
        return value

    def positive(self, column: str, when_empty: str | None = None) -> float:
        """Return a finite number above 0.

        Args:
            when_empty: When it may be empty or missing, which gives NaN; None: never.

        Raises:
            ValueError: The value is no such number.
        """
        if when_empty is not None and not self.values.get(column):
            return math.nan
        value = self._float(column)
        if not 0 < value < math.inf:
            empty = "" if when_empty is None else f", or empty {when_empty}"
            raise self.error(column, f"must be a number above 0{empty}")
        return value

    def _float(self, column: str) -> float:
        try:
            return float(self.values[column])
        except ValueError:
            return math.nan


def read_rows(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows of a file, whose columns may be in any order.

    Raises:
        ValueError: The file is no CSV, a column is missing, unknown or there twice, or a row has too many or
            too few values.
        OSError: The file cannot be read.
    """
    with _open(path) as stream:
        reader = csv.reader(stream)
        try:
            columns = next(reader, [])
            allowed = ",".join(required) + "".join(f"[,{column}]" for column in optional)
            for column in required:
                if column not in columns:
                    raise ValueError(f"{path}, line 1: no column {column!r}; the columns are {allowed}")
            for i, column in enumerate(columns):
                if column not in (*required, *optional) or column in columns[:i]:
                    raise ValueError(
                        f"{path}, line 1: column {column!r} is unknown or twice; the columns are {allowed}"
                    )
            for values in reader:
                if len(values) != len(columns):
                    raise ValueError(
                        f"{path}, line {reader.line_num}: {','.join(values)!r} has {len(values)} values; "
                        f"there are {len(columns)} columns"
                    )
                yield Row(path, reader.line_num, dict(zip(columns, values, strict=True)))
        except (csv.Error, UnicodeDecodeError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}, after line {reader.line_num}: not CSV in UTF-8: {error}") from error


def _open(path: Path) -> TextIO:
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    if packed:
        return gzip.open(path, "rt", newline="", encoding="utf-8")
    return path.open(newline="", encoding="utf-8")

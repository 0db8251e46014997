"""Lines of several processes on one terminal, each behind its process's name, in the name's colour."""

from rich.text import Text

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


def prefixed(name: str, line: str, style: str = "") -> Text:
    """Return a line behind a name, in a colour that follows from the name unless a style is given."""
    return Text.assemble((f"{name} | ", style or _COLOURS[sum(name.encode()) % len(_COLOURS)]), line)

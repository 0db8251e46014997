"""The package's long description: README.md, whose links lead into the repository, for readers elsewhere.

All else that the package says of itself is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_PICTURE = re.compile(r"!\[[^\]]*\]\((?!\w+:)[^)\s]+\)\n*")
_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)[^)\s]+\)")


def description(readme: str) -> str:
    """Return a README without its comments and pictures; of links into the repository, the words are left."""
    return _LINK.sub(r"\1", _PICTURE.sub("", _COMMENT.sub("", readme)))


if __name__ == "__main__":
    readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    setup(long_description=description(readme), long_description_content_type="text/markdown")

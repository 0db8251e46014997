"""What pyproject.toml cannot say: the long description, and that the lab is no part of the package.

The long description is README.md, whose links lead into the repository, for readers elsewhere. The lab is
found by editable installations alone.
"""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_PICTURE = re.compile(r"!\[[^\]]*\]\((?!\w+:)[^)\s]+\)\n*")
_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)[^)\s]+\)")


class BuildWithoutLab(build_py):
    """Leave the lab out of what is built to be installed elsewhere."""

    def finalize_options(self) -> None:
        """Choose the packages."""
        super().finalize_options()
        if not self.editable_mode:
            self.packages = [name for name in self.packages if name.partition(".")[0] != "lab"]


def description(readme: str) -> str:
    """Return a README without its comments and pictures; of links into the repository, the words are left."""
    return _LINK.sub(r"\1", _PICTURE.sub("", _COMMENT.sub("", readme)))


if __name__ == "__main__":
    readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    setup(
        cmdclass={"build_py": BuildWithoutLab},
        long_description=description(readme),
        long_description_content_type="text/markdown",
    )

"""Reads pages as a browser does, as far as tests need it."""

import re
from html.parser import HTMLParser
from pathlib import Path

VOID_TAGS = {"br", "link", "meta", "img", "hr"}


class Page(HTMLParser):
    """Collects a page's text and attributes, and checks that its tags are closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Opens a tag."""
        self.handle_startendtag(tag, attrs)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes note of a tag."""
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        """Closes the tag that was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Takes note of text."""
        self.text += data
        if "tr" in self.open and self.rows[-1]:
            self.rows[-1][-1] += data.strip()

    def values(self, name: str) -> list[str | None]:
        """All values of the attribute `name`."""
        return [value for attribute, value in self.attributes if attribute == name]

    def row(self, first: str) -> list[str]:
        """The first row of a table that begins with a cell."""
        return next(row for row in self.rows if row and row[0] == first)


def read_page(path: Path) -> Page:
    """A page that stands alone: nothing is loaded from elsewhere, and each reference has its target."""
    source = path.read_text("utf-8")
    page = Page(source)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert page.values("src") == []
    assert "http" not in source
    assert "@import" not in source
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    targets = {value for name in ("href", "xlink:href") for value in page.values(name)}
    targets |= {
        f"#{target}" for _, value in page.attributes for target in re.findall(r"url\(#(.*?)\)", value or "")
    }
    assert targets <= {f"#{name}" for name in ids}
    figures = page.tags.count("figure")
    assert figures == page.values("role").count("img")
    return page

"""What the site has beyond docs/: other documents of the repository, pages made from code, sources.

The documents link to each other, and to code, by paths that hold in the repository. Here these paths become
links of the site: to the page of a document, or to a page that shows the file or lists the folder. It must
not know what any page says.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from api import python_api
from metrics import metrics_table
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from sources import source_page
from wire import wire_contract

DOCUMENTS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
    "lab/gpu/README.md": "gpu-benchmark.md",
}


MADE = {"wire-contract.md": wire_contract, "python-api.md": python_api, "metrics.md": metrics_table}

_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_NAMED_BY_PATH = re.compile(r"\[(?:docs/)?([\w-]+\.md)\]\((?:docs/)?\1(#[^)]*)?\)")
_RUN = re.compile(r"[ \t]*<!-- run:.*?-->\n?", re.DOTALL)
_origins: dict[str, str] = {}  # where in the repository a page of the site comes from


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents from elsewhere, what is made from the code, and the sources that are linked."""
    root = _root(config)
    _origins.clear()
    for file in files.documentation_pages():
        _origins[file.src_uri] = f"docs/{file.src_uri}"
    for origin, uri in DOCUMENTS.items():
        _origins[uri] = origin
        files.append(File.generated(config, uri, content=(root / origin).read_text()))
    for uri, make in MADE.items():
        files.append(File.generated(config, uri, content=make(root)))
    for path in sorted(_linked_sources(root)):
        files.append(File.generated(config, _source_uri(path), content=source_page(root, path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Turn the repository's paths into the site's, and leave out what only the tests read."""
    uri = page.file.src_uri
    markdown = _RUN.sub("", markdown)
    if uri not in _origins:
        return markdown
    markdown = _LINK.sub(lambda match: _site_link(match[1], uri, _root(config)), markdown)
    return _NAMED_BY_PATH.sub(lambda match: _by_title(match, _root(config)), markdown)


def _by_title(match: re.Match[str], root: Path) -> str:
    """A link whose words are a document's path says its title instead."""
    title = (root / "docs" / match[1]).read_text().partition("\n")[0].removeprefix("# ")
    return f"[{title}]({match[1]}{match[2] or ''})"


def _site_link(target: str, uri: str, root: Path) -> str:
    if re.match(r"[a-z]+:|#", target):
        return target
    name, mark, anchor = target.partition("#")
    path = _resolved(_origins[uri], name)
    if path in DOCUMENTS:
        path = DOCUMENTS[path]
    elif path.startswith("docs/"):
        path = path.removeprefix("docs/")
    elif (root / path).exists():
        path = _source_uri(path)
    else:
        return target  # for MkDocs to complain about
    return posixpath.relpath(path, posixpath.dirname(uri) or ".") + mark + anchor


def _linked_sources(root: Path) -> set[str]:
    """Paths of the repository's files and folders outside of docs/ that some document links to."""
    found = set()
    for origin in _origins.values():
        for target in _LINK.findall((root / origin).read_text()):
            path = _resolved(origin, target.partition("#")[0])
            inside = path in DOCUMENTS or path.startswith(("docs/", ".."))
            if not re.match(r"[a-z]+:|#", target) and not inside and (root / path).exists():
                found.add(path)
    return found


def _resolved(origin: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), name)) if name else origin


def _source_uri(path: str) -> str:
    return f"source/{path}.md"


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent

"""Files of reports: JSON that comes back, and nothing half written."""

import json
import math
from pathlib import Path

import pytest

from evenpace.reports.files import replace, write_json
from rpc.tokens import write_secret


def test_json_of_a_diverged_run_is_valid(tmp_path: Path) -> None:
    """NaN and infinity, which JSON does not have, become null."""
    write_json({"difference": math.nan, "progress": [{"loss": math.inf}]}, tmp_path / "report.json")
    read = json.loads((tmp_path / "report.json").read_text("utf-8"), parse_constant=pytest.fail)
    assert read == {"difference": None, "progress": [{"loss": None}]}


def test_a_failed_write_leaves_the_old_report(tmp_path: Path, monkeypatch) -> None:
    """A file is replaced whole or not at all, and no draft stays behind."""
    path = tmp_path / "report.json"
    write_json({"old": True}, path)

    def fail(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space"):
        write_json({"old": False}, path)
    assert json.loads(path.read_text("utf-8")) == {"old": True}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("write", [replace, write_secret])
@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("none/page", "No such file or directory"),
        ("file/page", "Not a directory"),
        ("folder", "Is a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_with_the_reason(tmp_path, write, place, why) -> None:
    """The name is the one that was given, not that of the draft; and no draft is left."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=why) as caught:
        write(tmp_path / place, b"text")
    assert str(caught.value).endswith(f"{why}: {str(tmp_path / place)!r}")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}

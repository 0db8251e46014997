"""Lines of files that grow."""

import pytest

from lab.new_lines import NewLines


def test_each_line_comes_once_when_it_has_ended(tmp_path):
    """Of several files, each by itself; an empty line is one, too."""
    lines, one, other = NewLines(), tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"a\nbe")
    other.write_bytes(b"")
    assert (lines.of(one), lines.of(other)) == ([b"a"], [])
    assert lines.of(one) == []
    for path in (one, other):
        with path.open("ab") as stream:
            stream.write(b"gun\n\nc\nd")
    assert (lines.of(one), lines.of(other)) == ([b"begun", b"", b"c"], [b"gun", b"", b"c"])
    with pytest.raises(FileNotFoundError):
        lines.of(tmp_path / "none")

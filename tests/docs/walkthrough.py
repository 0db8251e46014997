"""Runs the blocks of a document in order: commands in terminals, Python as programs, in a folder made for it.

The machines that a document speaks of are addresses of the loopback device here.
"""

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import STARTUP
from tests.docs.documents import ROOT, Block
from tests.docs.terminal import Terminal, without_styles

MACHINES = {"10.0.0.1": "127.0.0.1", "10.0.0.2": "127.0.0.2"}
EVERYWHERE = "0.0.0.0"  # stands for the machine's own address
LINKED = ("Makefile", "docker", "docker-compose.yml", "examples")
SECONDS = 600.0  # for any one block
LINES_SECONDS = 240.0  # for lines that a document shows, once the blocks before it have ended or listen

_PIECES = re.compile(r"(\d+(?:\.\d+)*|\.\.\.|\w+|\s+)")
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_SERVICE = re.compile(r"^ *evenpace (?:manager|ps|partitions)\b", re.MULTILINE)


class Page:
    """Document whose commands are run, block by block.

    Args:
        blocks: Of the document, in order.
        folder: An empty one, where it is gone through.
        through: A command to start terminals through, as for `Terminal`.
    """

    def __init__(self, blocks: Sequence[Block], folder: Path, through: Sequence[str] = ()) -> None:
        self._blocks = blocks
        self._folder = folder
        self._through = through
        self._terminals: list[Terminal] = []
        self._program: list[Block] = []
        _furnish(folder)
        self._environment = _environment(folder)
        self._main = self._terminal()

    def run(self) -> None:
        """Run everything (AssertionError: a block did not do what it should)."""
        try:
            for block in self._blocks:
                self._take(block)
            self._run_program()
        except BaseException:
            for terminal in reversed(self._terminals):
                terminal.close()
            raise
        self._stop()

    def _take(self, block: Block) -> None:
        if block.language == "python" and block.runs:
            if "new" in block.directives:
                self._run_program()
            self._program.append(block)
            return
        if block.language == "bash" or "prints" in block.directives:
            self._run_program()
        if "file" in block.directives:
            path = self._folder / block.directives["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif "prints" in block.directives:
            self._wait_for_lines(block)
        elif block.language == "bash" and block.runs:
            self._run_commands(block)

    def _run_commands(self, block: Block) -> None:
        script = self._substituted(block)
        if "ctrl-c" in block.directives:
            for terminal in reversed(self._terminals):
                terminal.press_ctrl_c()
        if "background" in block.directives:
            self._run_in_background([script], block.directives.get("until"))
        elif "terminals" in block.directives:
            self._run_side_by_side(script.replace("\\\n", " ").splitlines())
        elif "expect" in block.directives:
            status = block.directives["expect"]
            script = f"actual=0\n(\n{script}\n) || actual=$?\necho status $actual\n[ $actual = {status} ]"
            self._main.run(script, SECONDS)
        else:
            self._main.run(script, SECONDS)

    def _run_in_background(self, scripts: Sequence[str], until: str | None = None) -> None:
        """Start scripts at once, each in a terminal of its own, and wait until their services listen."""
        begun = [(self._terminal(), script) for script in scripts]
        for terminal, script in begun:
            terminal.start(script)
        for terminal, script in begun:
            listening = {"listening on": len(_SERVICE.findall(script))}
            terminal.wait_for(listening | ({until: 1} if until else {}), SECONDS)

    def _run_side_by_side(self, lines: Sequence[str]) -> None:
        self._run_in_background([line for line in lines if _SERVICE.search(line)])
        others = [(self._terminal(), line) for line in lines if not _SERVICE.search(line)]
        ends = [(terminal, terminal.start(line)) for terminal, line in others]
        for terminal, status in ends:
            terminal.wait_for_end(status, SECONDS)

    def _stop(self) -> None:
        """Stop everything at the page's end, as Ctrl-C does: the last that was started first."""
        killed = [name for terminal in reversed(self._terminals) for name in terminal.close()]
        assert not killed, f"did not stop by Ctrl-C: {killed}"

    def _run_program(self) -> None:
        """Run the Python blocks so far as one program, whose line numbers are the document's."""
        if not self._program:
            return
        lines: list[str] = []
        for block in self._program:
            text = self._substituted(block).splitlines()
            lines += [""] * (block.line - 1 - len(lines))
            lines += text
        first = self._program[0]
        path = self._folder / f"{first.path.stem}_{first.line}.py"
        path.write_text("\n".join(lines) + "\n")
        self._program = []
        self._main.run(f"python {path.name}", SECONDS)

    def _wait_for_lines(self, block: Block) -> None:
        tolerances = block.tolerances()
        deadline = time.monotonic() + LINES_SECONDS
        while missing := not_printed(block.text, self._printed(), tolerances):
            said = f"{block.place}: {missing} not printed, but:\n{self._printed()}"
            assert time.monotonic() < deadline, said
            time.sleep(0.05)

    def _printed(self) -> str:
        return "\n".join(without_styles(terminal.printed()) for terminal in self._terminals)

    def _substituted(self, block: Block) -> str:
        here = MACHINES[block.directives.get("on", "10.0.0.1")]
        text = block.text.replace(EVERYWHERE, here)
        for machine, address in MACHINES.items():
            text = text.replace(machine, address)
        text = re.sub(r"\bHOST\b", MACHINES["10.0.0.1"], text)
        return text.replace("/var/lib/", f"{self._folder}/var/")

    def _terminal(self) -> Terminal:
        name = f"terminal-{len(self._terminals)}"
        terminal = Terminal(self._folder, name, self._environment, self._through)
        self._terminals.append(terminal)
        return terminal


def not_printed(wanted: str, printed: str, tolerances: Mapping[str, float]) -> list[str]:
    """The lines that were not printed as often as they are wanted, in any order.

    Args:
        wanted: Lines; `...` stands for anything.
        printed: Lines.
        tolerances: By word: by what share of itself a number right after it may be larger or smaller. All
            other numbers must be the same.
    """
    counts = Counter(line.strip() for line in wanted.splitlines() if line.strip())
    lines = printed.splitlines()
    return [
        line
        for line, count in counts.items()
        if sum(_is_shown(line, other, tolerances) for other in lines) < count
    ]


def _is_shown(line: str, printed: str, tolerances: Mapping[str, float]) -> bool:
    pattern, measured, word = "", [], ""
    for piece in _PIECES.split(line):
        if _NUMBER.fullmatch(piece):
            if word in tolerances:
                pattern += r"(\d+(?:\.\d+)?)(?!\.?\d)"
                measured.append((float(piece), tolerances[word]))
            else:
                pattern += rf"(?<!\d)(?<!\d\.){re.escape(piece)}(?!\.?\d)"
        elif piece == "...":
            pattern += ".*?"
        else:
            pattern += r"\s+" if piece.isspace() else re.escape(piece)
        if piece and not piece.isspace():
            word = piece
    return any(
        all(
            abs(float(number) - value) <= tolerance * value
            for number, (value, tolerance) in zip(found.groups(), measured, strict=True)
        )
        for found in re.finditer(pattern, printed)
    )


def _furnish(folder: Path) -> None:
    """Make what a document expects to find: the repository's files, a script of the user's, the command."""
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    example = (ROOT / "examples" / "train_digits_evenpace.py").read_text()
    assert "epochs(15)" in example
    (folder / "train.py").write_text(example.replace("epochs(15)", "epochs(3)"))
    binaries = folder / ".bin"
    binaries.mkdir()
    forked = f'exec "{sys.executable}" -I -S "{ROOT}/tests/scripts/forked_command.py"'
    modules = {"evenpace": "-m evenpace", "python": "", "torchrun": "-m torch.distributed.run"}
    for name, arguments in modules.items():
        command = binaries / name
        command.write_text(f'#!/bin/sh\n{forked} {arguments} "$@"\n')
        command.chmod(0o755)


def _environment(folder: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = [str(folder / ".bin"), str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]
    return environment | {
        "PATH": ":".join(path),
        "PYTHONPATH": f"{ROOT}:{STARTUP}",
        "COLUMNS": "100",
        "PYTHONUNBUFFERED": "1",
    }

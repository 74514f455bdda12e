"""What the pages show is what happens: every command, file and Python block of README.md and docs/ is run.

In a page,

- a ``console`` block holds commands (lines that start with ``$ ``) and what they print; a line ``…`` stands for any
  lines, and ``…`` within a line for any text; ``$ echo $?`` is the exit code;
- a ``python`` block is executed, and a ``text`` block right after it is what it prints;
- any block after ``<!-- file: PATH -->`` is written to that file first;
- a ``diff`` block after ``<!-- edit: PATH -->`` is applied to that file.

All of one page happens in one empty folder, in order; a page with ``<!-- in a copy of the checkout -->`` has the
package and ``conf/`` in that folder, and runs that copy, in processes of its own.
``python tests/test_docs.py`` writes the true output into the blocks that differ, where nothing is elided.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import builder
from builder import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if path.is_file()]
COLUMNS = "120"

_FENCE = re.compile(
    r"(?:^<!-- (?P<what>file|edit): (?P<file>\S+) -->\n+)?^```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

_PROGRESS = re.compile(r"builder: \d+ of \d+ rows")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. start, end: where its body stands in the text."""

    language: str
    file: str | None
    edits: bool
    body: str
    start: int
    end: int
    line: int


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [
        Block(
            found["language"],
            found["file"],
            found["what"] == "edit",
            found["body"],
            found.start("body"),
            found.end("body"),
            text.count("\n", 0, found.start("body")),
        )
        for found in _FENCE.finditer(text)
    ]


class Page:
    """Runs the blocks of a page in the current folder; ``own_copy``: with the copy of the package that stands there."""

    def __init__(self, own_copy: bool = False) -> None:
        self.own_copy = own_copy
        self.code = 0
        self.names: dict[str, Any] = {"__name__": "page"}

    def command(self, line: str) -> str:
        """What a command prints on both outputs. Those of builder run in this process."""
        if line == "echo $?":
            return f"{self.code}\n"
        words = shlex.split(line)
        if self.own_copy or (words[:3] != ["python", "-m", "builder"] and words[0] != "builder"):
            return self._process([sys.executable, *words[1:]] if words[0] == "python" else words)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            self.code = cli.main(words[1:] if words[0] == "builder" else words[3:])
        return printed.getvalue()

    def python(self, body: str) -> str:
        """What a block of Python prints."""
        if self.own_copy:
            printed = self._process([sys.executable, "-c", body])
            assert self.code == 0, printed
            return printed
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(body, "<page>", "exec"), self.names)
        return printed.getvalue()

    def _process(self, words: list[str]) -> str:
        environment = {**os.environ, **({"PYTHONPATH": str(Path.cwd())} if self.own_copy else {})}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
        self.code = done.returncode
        return done.stdout + done.stderr

    def outputs(self, page: list[Block]) -> Iterator[tuple[Block, str, str]]:
        """Block, what was run, and what it printed: for every block whose output stands in the page."""
        ran = None
        for block in page:
            if block.file is not None and block.edits:
                apply(block.body, Path(block.file))
            elif block.file is not None:
                Path(block.file).parent.mkdir(parents=True, exist_ok=True)
                Path(block.file).write_text(block.body, encoding="utf-8")
                importlib.invalidate_caches()
            elif block.language == "console":
                commands = [line.removeprefix("$ ") for line in block.body.splitlines() if line.startswith("$ ")]
                yield block, block.body, "".join(f"$ {line}\n{tidy(self.command(line))}" for line in commands)
            elif block.language == "python":
                printed = self.python(block.body)
                ran = block.body, printed
                continue
            elif block.language == "text" and ran is not None:
                yield block, ran[0], tidy(ran[1])
            ran = None


def tidy(printed: str) -> str:
    """Without blanks at the ends of lines, empty lines before and after, and the progress of a slow sweep."""
    lines = [line.rstrip() for line in printed.splitlines() if not _PROGRESS.fullmatch(line)]
    text = "\n".join(lines).strip("\n")
    return f"{text}\n" if text else ""


def pattern(shown: str) -> re.Pattern[str]:
    """A block as a pattern: an elided line is any lines, an elision in a line any text."""
    parts = [
        r"(?:[^\n]*\n)*?" if line.strip() == "…" else re.escape(line.rstrip()).replace("…", "[^\n]*") + r"\n"
        for line in shown.splitlines()
    ]
    return re.compile("".join(parts))


def apply(edit: str, path: Path) -> None:
    """Replace the lines of an edit that are kept or taken away by those that are kept or added; they stand once."""
    before, after = (
        "\n".join(line[1:] for line in edit.splitlines() if line[:1] in (" ", mark)) for mark in ("-", "+")
    )
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{path} has {text.count(before)} times:\n{before}"
    path.write_text(text.replace(before, after), encoding="utf-8")


def wants_a_copy(text: str) -> bool:
    """The page edits the package."""
    return "<!-- in a copy of the checkout -->" in text


@contextlib.contextmanager
def folder_of_a_page(folder: Path, own_copy: bool = False) -> Iterator[None]:
    """The empty folder that a page's commands run in; the checkpoints of the tests are found there too."""
    if own_copy:
        for name in ("builder", "conf"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        (folder / "tests").symlink_to(ROOT / "tests")
    before, columns, path = Path.cwd(), os.environ.get("COLUMNS"), list(sys.path)
    modules = set(sys.modules)
    os.chdir(folder)
    os.environ["COLUMNS"] = COLUMNS
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_shows_what_happens(path: Path, tmp_path: Path) -> None:
    wrong: list[str] = []
    text = path.read_text(encoding="utf-8")
    with folder_of_a_page(tmp_path, wants_a_copy(text)):
        for block, ran, printed in Page(wants_a_copy(text)).outputs(blocks(text)):
            if not pattern(block.body).fullmatch(printed):
                wrong.append(f"{path.name}:{block.line}:\n{ran}\nprints\n{printed}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert "://" in target or (path.parent / target).exists(), target


def marked(mark: str) -> str:
    """The one line of the fenced block after ``<!-- MARK -->`` in the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^<!-- {mark} -->\n+```\w*\n(.+)\n```$", text, re.MULTILINE)
    assert found, f"README.md has no fenced line after <!-- {mark} -->"
    return found[1]


def test_the_two_commands_of_the_readme() -> None:
    install = "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e"
    assert marked("run") == f"{install} . && .venv/bin/python -m builder hardware=amd spec=none pp=4"
    assert marked("test") == f"{install} '.[test]' && .venv/bin/python -m pytest -n 2"


def test_the_check_script_reads_the_test_command() -> None:
    script = ROOT / ".ci" / "run"
    if not script.is_file() and not (ROOT / ".git").exists():
        pytest.skip("a source distribution has no .ci/run to read; a checkout always has")
    reading = next(line for line in script.read_text(encoding="utf-8").splitlines() if line.startswith("line="))
    done = subprocess.run(
        ["bash", "-c", f'{reading}; printf %s "$line"'], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == marked("test")


METHODS = {
    "none": [],
    "ngram": [],
    "mtp": [],
    "eagle": [],
    "draft_model": [],
    "dspark": ["model=v4_pro_0813"],
}


def test_the_table_of_methods_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for method, extra in METHODS.items():
        document = builder.plan(builder.compose(["hardware=amd", "pp=4", f"spec={method}", *extra])).to_dict()
        *others, last = document["ranks"]
        assert not any(rank["bytes"]["mtp_stash"] + rank["bytes"]["drafter"] for rank in others)
        sizes = [last["bytes"][name] for name in ("drafter", "mtp_stash", "aux_hidden")]
        cells = " | ".join(f"{size:,}" if size else "-" for size in sizes)
        assert f"| `{method}` | {cells} | {document['checkpoint']['tensors']:,} |" in text, (method, cells)


def rewrite(path: Path) -> None:
    """Put the true output into the blocks of a page that differ from it and elide nothing."""
    text = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, folder_of_a_page(Path(folder), wants_a_copy(text)):
        results = list(Page(wants_a_copy(text)).outputs(blocks(text)))
    for block, _, printed in reversed(results):
        if pattern(block.body).fullmatch(printed):
            continue
        if "…" in block.body:
            sys.stderr.write(f"{path.name}:{block.line}: differs, and elides something:\n{printed}")
        else:
            text = text[: block.start] + printed + text[block.end :]
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for page in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        rewrite(page)

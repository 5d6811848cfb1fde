# SPDX-License-Identifier: Apache-2.0
"""Checks what a formatter cannot: file length, the licence line, marks of unfinished work, ASCII."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOFT_LINES = 400
HARD_LINES = 600

CODE = {".h", ".cpp", ".cu", ".cuh", ".py", ".cmake"}
CODE_NAMES = {"CMakeLists.txt", "dev", "run"}
# Corpora of the text tests hold every script on purpose.
NON_ASCII_FOLDERS = ("tests/text/", "tests/cli/", "fuzz/corpus/")

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
ASM = re.compile(r"\b(asm|__asm__)\b\s*(volatile|__volatile__)?\s*\(")
SENTENCE = re.compile(r'// \S|# \S|"""\S')  # a comment with text, not #include or #pragma
LICENCE = "SPDX-License-Identifier: Apache-2.0"


def tracked_files():
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in listing.splitlines():
        path = ROOT / name
        if path.is_file() and (path.suffix in CODE or path.name in CODE_NAMES):
            yield name, path


def check_head(lines, is_build_list):
    """The licence line is first (after a #! line); then a sentence, or a docstring, says why."""
    start = 1 if lines and lines[0].startswith("#!") else 0
    if len(lines) <= start or LICENCE not in lines[start]:
        yield start + 1, "the licence line is missing"
    elif not is_build_list and not SENTENCE.match("".join(lines[start + 1 : start + 2])):
        yield start + 2, "a comment or docstring after the licence line must say what the file is for"


def check_lines(name, lines):
    for number, line in enumerate(lines, start=1):
        if "\t" in line:
            yield number, "tab"
        if line != line.rstrip():
            yield number, "space at the end of the line"
        if not line.isascii() and not name.startswith(NON_ASCII_FOLDERS):
            yield number, "not ASCII"
        if name != "tools/check_style.py" and UNFINISHED.search(line):
            yield number, "unfinished work needs an issue number, as TODO(#12)"
        if ASM.search(line) and name.startswith("src/") and "src/cuda/device/" not in name:
            yield number, "asm belongs to src/cuda/device"


def check_file(name, path):
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    if len(lines) > HARD_LINES:
        yield HARD_LINES, f"{len(lines)} lines, the hard limit is {HARD_LINES}"
    if text and not text.endswith("\n"):
        yield len(lines), "no newline at the end of the file"
    yield from check_head(lines, path.name == "CMakeLists.txt")
    yield from check_lines(name, lines)


def main():
    failed = False
    for name, path in tracked_files():
        for number, text in check_file(name, path):
            print(f"{name}:{number}: {text}")
            failed = True
        length = len(path.read_text(encoding="utf-8").splitlines())
        if SOFT_LINES < length <= HARD_LINES:
            print(f"{name}: note: {length} lines, the soft limit is {SOFT_LINES}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

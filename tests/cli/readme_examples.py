# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of README.md and compares what they print, times aside: readme_examples.py PROGRAM."""

import json
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The examples call ./dev run, which builds and hands its words on; these go to the program as they are.
COMMANDS = ("run", "info", "verify", "eval", "bench")
SECONDS = 120


def program_words(words):
    """What ./dev run hands to the program."""
    if not words:
        return ["run", "-m", "models/tiny", "-p", "What is 12 + 30?"]
    return words if words[0] in COMMANDS or words[0].startswith("--") else ["run", *words]


def examples(text):
    """(command, printed lines) of every line that starts with $ in a fenced block."""
    for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed


def without_times(printed):
    """One JSON object may be broken over lines; speeds, seconds, and the drafts that follow from them differ."""
    if printed.startswith("{"):
        answer = json.loads(printed.replace("\n", ""))
        for key in [key for key in answer["usage"] if key.endswith("_seconds")]:
            answer["usage"][key] = "some"
        answer["usage"].pop("drafts", None)
        return json.dumps(answer)
    printed = re.sub(r"^\[drafts: .*\n", "", printed, flags=re.MULTILINE)
    return re.sub(r"[\d.]+ tokens/s", "N tokens/s", printed)


def run(program, words, text=""):
    command = [program, *program_words(words)]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=ROOT, timeout=SECONDS, check=False
    )
    return done.returncode, done.stdout + done.stderr


def check_example(program, command, printed, files):
    """Why an example does not hold, or None; `cat` shows a file that later examples read."""
    words = shlex.split(command)
    if words[0] == "cat":
        files[words[1]] = printed
        return None
    if words[:2] != ["./dev", "run"]:
        return "not a command that this test knows"
    words, text = words[2:], ""
    if "<" in words:
        text = files[words[-1]]
        words = words[: words.index("<")]
    status, found = run(program, words, text)
    if status != 0:
        return f"status {status}: {found}"
    expected, found = without_times(printed), without_times(found)
    return None if expected == found else f"expected: {expected}\n   found: {found}"


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    failed, compared, files = 0, 0, {}
    for command, printed in examples((ROOT / "README.md").read_text(encoding="utf-8")):
        problem = check_example(program, command, printed.rstrip("\n") + "\n", files)
        compared += command.startswith("./dev run")
        failed += problem is not None
        print(f"{command}: {problem or 'as in the README'}")
    if compared == 0:
        print("README.md has no example")
    return 1 if failed or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

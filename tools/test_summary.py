# SPDX-License-Identifier: Apache-2.0
"""Closes a test run: counts the cases of all GoogleTest reports and names every skipped one."""

import collections
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def read_cases(folder):
    """Yields (case name, outcome, skip reason) for each case in the reports of a folder."""
    for report in sorted(pathlib.Path(folder).glob("*.xml")):
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            skipped = case.find("skipped")
            if case.find("failure") is not None:
                yield name, "failed", ""
            elif skipped is not None:
                yield name, "skipped", skipped.get("message", "").strip().split("\n")[-1]
            elif case.get("status") == "run":
                yield name, "passed", ""


# More cases than this with one reason to be skipped (no GPU) are one line.
MANY = 5


def skipped_lines(cases):
    """One line per skipped case, or per reason that many cases share."""
    by_reason = collections.defaultdict(list)
    for name, outcome, reason in cases:
        if outcome == "skipped":
            by_reason[reason].append(name)
    for reason, names in by_reason.items():
        if len(names) > MANY:
            yield f"  skipped: {len(names)} cases, {names[0]} to {names[-1]}: {reason}"
        else:
            yield from (f"  skipped: {name} {reason}".rstrip() for name in names)


def main(folder, ctest_status):
    cases = list(read_cases(folder))
    counts = {kind: sum(c[1] == kind for c in cases) for kind in ("passed", "failed", "skipped")}
    print()
    for line in skipped_lines(cases):
        print(line)
    for name, outcome, _ in cases:
        if outcome == "failed":
            print(f"  failed: {name}")
    print(f"{counts['passed']} cases passed, {counts['failed']} failed, {counts['skipped']} skipped")
    failed = ctest_status != 0 or counts["failed"] > 0
    print("FAILED" if failed else "OK: every test that could run has passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))

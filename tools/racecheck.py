#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every suite of a test program under compute-sanitizer's racecheck and judges the reports.

Each suite is a process of its own with a time limit; a few run at once. The status is 0 only when
every suite came to its end and showed no report but those that the known list explains. Tests of
the list of those left out do not run; they are named at the start and in the table.
"""

import argparse
import concurrent.futures
import dataclasses
import fnmatch
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# These take longest and begin first.
LONG = re.compile("Gdn|Linear|Attend|Mixer|SampleCuda|Pipeline|ExpertsCuda")
REPORT = re.compile(r"=+ (Error|Warning): (Race reported between .*)")
ENDED = re.compile(r"\[ +(?:OK|SKIPPED|FAILED) +\] (\S+) \(\d+ ms\)")
PARTNER = re.compile(r"=+ +and .* access at .*")
LIBRARY_VERSIONS = (12, 13)
CPU_COUNT = os.cpu_count() or 1


@dataclasses.dataclass(frozen=True)
class Known:
    """A report that is no race."""

    suite: re.Pattern
    kernel: str
    access: re.Pattern
    reason: str


@dataclasses.dataclass
class Outcome:
    """What became of a suite."""

    suite: str
    tests: int
    seconds: float
    result: str
    clean: bool
    unknown: list = dataclasses.field(default_factory=list)
    ended: list = dataclasses.field(default_factory=list)
    missing: list = dataclasses.field(default_factory=list)

    def add_tests(self, tests, text):
        """Which tests came to their end, when the suite did not."""
        ended = set(ENDED.findall(text))
        self.ended = [test for test in tests if test in ended]
        self.missing = [test for test in tests if test not in ended]
        self.result += f", {len(self.ended)} of {len(tests)} tests ended"


def read_table(path, count):
    """Fields of every line of a list."""
    table = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        fields = line.split(" | ")
        if len(fields) != count:
            sys.exit(
                f"{path}:{number}: expected {count} fields with ' | ' between, found {len(fields)}"
            )
        table.append(fields)
    return table


def read_known(path):
    return [
        Known(re.compile(suite), kernel, re.compile(access), reason)
        for suite, kernel, access, reason in read_table(path, 4)
    ]


def list_suites(program, chosen):
    """Names of the suites and of their tests, long ones first."""
    listing = subprocess.run(
        [program, "--gtest_list_tests", f"--gtest_filter={chosen}"],
        check=True, capture_output=True, text=True,
    ).stdout
    suites = {}
    for line in listing.splitlines():
        if line.startswith("  "):
            suites[name].append(f"{name}.{line.split()[0]}")
        elif re.match(r"\S+\.(\s|$)", line):
            name = line.split(".")[0]
            suites[name] = []
    return sorted(suites.items(), key=lambda suite: LONG.search(suite[0]) is None)


def leave_out(suites, left_out):
    """Takes tests out; returns what runs, and a line for each test that does not."""
    kept, lines = [], []
    for suite, tests in suites:
        rest = []
        for test in tests:
            reasons = [reason for pattern, reason in left_out if fnmatch.fnmatchcase(test, pattern)]
            if reasons:
                lines.append(f"left out: {test}: {reasons[0]}")
            else:
                rest.append(test)
        if rest:
            kept.append((suite, rest))
    return kept, lines


def hide_library(folder, program):
    """Puts another library where the loader looks for cuBLASLt first; it has none of its functions.

    The tool breaks off at the library's kernels, and without them prompts take our own.
    """
    linked = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    standard = re.search(r"libc\.so\S* => (\S+)", linked)
    if standard is None:
        sys.exit(f"{program} is not linked with the C library")
    for version in LIBRARY_VERSIONS:
        (folder / f"libcublasLt.so.{version}").symlink_to(standard[1])


def tool_command(jobs):
    command = ["compute-sanitizer", "--tool", "racecheck", "--error-exitcode", "1",
               "--kernel-regex", "kns=tessera", "--launch-timeout", "120"]
    usage = subprocess.run(
        ["compute-sanitizer", "--help"], check=False, capture_output=True, text=True
    ).stdout
    if "racecheck-num-workers" in usage:
        command += ["--racecheck-num-workers", str(max(1, CPU_COUNT // jobs))]
    return command


def reports_of(text):
    """(first access, its partners) of every report."""
    reports = []
    for line in text.splitlines():
        if match := REPORT.match(line):
            reports.append((match[2], []))
        elif PARTNER.match(line) and reports:
            reports[-1][1].append(line)
    return reports


def judge(suite, tests, seconds, status, text, known):
    """`status` is None when the time limit ended the suite."""
    unknown, explained = [], 0
    for first, partners in reports_of(text):
        if any(one.suite.fullmatch(suite) and one.access.search(first) for one in known):
            explained += 1
        else:
            unknown.append("\n".join([first, *partners]))
    suffix = f", known {explained}" if explained else ""
    ended = "RACECHECK SUMMARY" in text
    failed = re.search(r"\[  FAILED  \] (\S+)", text)
    if unknown:
        result = f"hazards {len(unknown)}"
    elif "Internal Sanitizer Error" in text:
        result = "tool broke"
    elif status is None:
        result = "time limit"
    elif failed:
        result = f"failed: {failed[1]}"
    elif not ended or (status != 0 and not explained):
        result = f"no end, status {status}"
    else:
        result = f"known {explained}" if explained else "clean"
        return Outcome(suite, tests, seconds, result, True)
    return Outcome(suite, tests, seconds, result + suffix, False, unknown)


def run_suite(suite, tests, options, command, environment, deadline, known):
    begin = time.monotonic()
    limit = min(options.limit, deadline - begin)
    if limit <= 0:
        return Outcome(suite, len(tests), 0.0, "not run: no time was left", False)
    program = [str(options.program), f"--gtest_filter={':'.join(tests)}"]
    file = options.out / f"racecheck.{suite.replace('/', '.')}.txt"
    with file.open("w") as output:
        process = subprocess.Popen(
            command + program, stdout=output, stderr=subprocess.STDOUT, cwd=options.folder,
            env=environment, start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(process.pid, 9)  # the tool and the program under it
            process.wait()
    text = file.read_text(errors="replace")
    outcome = judge(suite, len(tests), time.monotonic() - begin, status, text, known)
    if status is None:
        outcome.add_tests(tests, text)
    lines = [f"{suite:28} {len(tests):3} tests {outcome.seconds:6.1f} s  {outcome.result}"]
    lines += [f"    ended: {test}" for test in outcome.ended]
    lines += [f"    no end: {test}" for test in outcome.missing]
    print("\n".join(lines), flush=True)
    return outcome


def write_table(outcomes, left_out, file):
    """Totals by result, and what nobody has explained yet."""
    totals = {}
    for outcome in outcomes:
        kind = re.split("[ :,]", outcome.result)[0]
        count, tests = totals.get(kind, (0, 0))
        totals[kind] = (count + 1, tests + outcome.tests)
    lines = [f"{one.suite}\t{one.tests}\t{one.seconds:.1f}\t{one.result}" for one in outcomes]
    lines += ["", *left_out]
    for outcome in outcomes:
        lines += [f"ended: {test}" for test in outcome.ended]
        lines += [f"no end: {test}" for test in outcome.missing]
    lines.append("")
    for kind, (count, tests) in totals.items():
        lines.append(f"{kind:10} {count:3} suites {tests:4} tests")
    for outcome in outcomes:
        lines += [f"\n{outcome.suite}: {report}" for report in outcome.unknown]
    file.write_text("\n".join(lines) + "\n")
    print("\n".join(lines[len(outcomes):]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path, help="the GoogleTest program")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="where the program runs")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    known_list = Path(__file__).with_name("racecheck_known.txt")
    parser.add_argument("--known", type=Path, default=known_list, help="reports that are no races")
    left_out_list = known_list.with_name("racecheck_left_out.txt")
    parser.add_argument("--left-out", type=Path, default=left_out_list, help="tests not to run")
    parser.add_argument("--filter", default="*", help="suites and tests, as of GoogleTest: *Gdn*.*")
    parser.add_argument("--jobs", type=int, default=4, help="processes at once")
    parser.add_argument("--limit", type=float, default=120, help="seconds of a suite")
    parser.add_argument("--total", type=float, default=1800, help="seconds of all suites")
    options = parser.parse_args()
    known = read_known(options.known)
    options.program, options.out = options.program.resolve(), options.out.resolve()
    suites, left_out = leave_out(
        list_suites(options.program, options.filter), read_table(options.left_out, 2)
    )
    print("\n".join(left_out), flush=True)
    if not suites:
        sys.exit(f"no test of {options.program} fits {options.filter}")
    deadline = time.monotonic() + options.total
    command = tool_command(options.jobs)
    with (
        tempfile.TemporaryDirectory() as hidden,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
    ):
        hide_library(Path(hidden), options.program)
        path = os.pathsep.join(filter(None, [hidden, os.environ.get("LD_LIBRARY_PATH")]))
        environment = dict(os.environ, TESSERA_REDUCED_TESTS="1", LD_LIBRARY_PATH=path)
        running = [
            pool.submit(run_suite, suite, tests, options, command, environment, deadline, known)
            for suite, tests in suites
        ]
        outcomes = [one.result() for one in running]
    write_table(outcomes, left_out, options.out / "racecheck.txt")
    return 0 if all(outcome.clean for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())

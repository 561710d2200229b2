"""What the programs that tools/gpu_check runs print, as values."""

import json
import re


def gtest_counts(report, log):
    """(passed, failed names, skipped names) of a run: from its JSON report, or, where a crash or a
    time limit left none, from what it printed; the case it ended in counts as failed."""
    if report is not None:
        passed, failed, skipped = 0, [], []
        for suite in json.loads(report)["testsuites"]:
            for case in suite["testsuite"]:
                name = f"{suite['name']}.{case['name']}"
                if case.get("failures"):
                    failed.append(name)
                elif case.get("result") == "SKIPPED" or case.get("status") == "NOTRUN":
                    skipped.append(name)
                else:
                    passed += 1
        return passed, failed, skipped
    ended = {"OK": [], "FAILED": [], "SKIPPED": []}
    running = None
    for line in log.splitlines():
        match = re.match(r"\[ *(RUN|OK|FAILED|SKIPPED) *\] ([^\s,]+)", line)
        if match and match[1] == "RUN":
            running = match[2]
        elif match and match[2] == running:
            ended[match[1]].append(running)
            running = None
    if running:
        ended["FAILED"].append(f"{running} (the program ended in it)")
    return len(ended["OK"]), ended["FAILED"], ended["SKIPPED"]


def failure_lines(log, at_most=5):
    """The first lines of a test log that say what failed."""
    lines = [line.strip() for line in log.splitlines() if ": Failure" in line]
    return [line[-200:] for line in lines[:at_most]]


def sanitizer_errors(log):
    """Errors that compute-sanitizer counted; None where it printed no summary."""
    races = re.findall(r"RACECHECK SUMMARY: .*\((\d+) errors?, (\d+) warnings?\)", log)
    if races:
        return sum(int(errors) + int(warnings) for errors, warnings in races)
    summaries = re.findall(r"ERROR SUMMARY: (\d+) error", log)
    return sum(map(int, summaries)) if summaries else None


def stats(text):
    """The lines of `quern run --stats`: name to text."""
    return dict(re.findall(r"^([a-z][a-z ]*): +(\S.*)$", text, re.MULTILINE))


def milliseconds(line):
    """All times of a line of --stats, added: "4 compiled (1.5 ms), 2 loaded (0.5 ms)" is 2."""
    return sum(float(value) for value in re.findall(r"([\d.]+) ms", line))


def kernels_compiled(lines):
    """How many kernels a run compiled, by its --stats; None where it does not say."""
    match = re.match(r"(\d+) compiled", lines.get("kernels", ""))
    return int(match[1]) if match else None


def saturated(text):
    """Warnings about values that were clamped to the range of f16."""
    return len(re.findall(r"too large for f16", text))


def first_difference(left, right):
    """Where two texts part: (index, what follows on the left, on the right); None if equal."""
    if left == right:
        return None
    at = 0
    while at < min(len(left), len(right)) and left[at] == right[at]:
        at += 1
    return at, left[at : at + 60], right[at : at + 60]

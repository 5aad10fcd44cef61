"""Adds up what ctest, GoogleTest and unittest_main.py left in a results folder; the last line is the sum.

A ctest entry that wrote a case file (test_NAME.json) counts once per case, any other counts once. Under the name of a case
that failed stands what it said last: whoever sees only the end of a log needs no other.
"""

import glob
import json
import os
import sys
import xml.etree.ElementTree as ElementTree


TOLD_LINES = 6  # of a failure


def told(failure):
    """The last lines of what a failed case said: unittest ends with the cause, GoogleTest's texts are short."""
    lines = [line for line in failure.get("failure", "").splitlines() if line.strip()]
    return "".join(f"\n    {line[:300]}" for line in lines[-TOLD_LINES:])


def cases_of(path):
    """(passed, failed names with what they said, skipped) of one GoogleTest-style report."""
    passed, failed, skipped = 0, [], 0
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    for suite in report.get("testsuites", []):
        for case in suite.get("testsuite", []):
            if case.get("result") == "SKIPPED" or case.get("status") == "NOTRUN":
                skipped += 1
            elif case.get("failures"):
                failed.append(f"{suite['name']}.{case['name']}{told(case['failures'][0])}")
            else:
                passed += 1
    return passed, failed, skipped


def entries_of(results):
    """(name, state, case file or None) per ctest entry; without ctest's report per case file."""
    if not os.path.exists(os.path.join(results, "ctest.xml")):
        for file in sorted(glob.glob(os.path.join(results, "test_*.json"))):
            yield os.path.basename(file)[len("test_"):-len(".json")], "run", file
        return
    for entry in ElementTree.parse(os.path.join(results, "ctest.xml")).getroot().iter("testcase"):
        name, state = entry.get("name"), entry.get("status")
        if entry.find("skipped") is not None or state in ("notrun", "disabled"):
            state = "skipped"
        cases = os.path.join(results, f"test_{name}.json")
        yield name, state, cases if os.path.exists(cases) else None


def main(results):
    passed, failed, skipped = 0, [], 0
    for name, state, cases in entries_of(results):
        if cases is None:
            passed += state == "run"
            skipped += state == "skipped"
            failed += [name] if state == "fail" else []
            continue
        more = cases_of(cases)
        passed, skipped = passed + more[0], skipped + more[2]
        failed += [f"{name}: {case}" for case in more[1]]
        if state == "fail" and not more[1]:
            failed.append(f"{name} (ended badly after its cases)")
    for name in failed:
        print(f"FAILED {name}")
    print(f"{passed} passed, {len(failed)} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""Prints how many tests of a ctest JUnit report passed, failed and were skipped: three numbers."""

import sys
import xml.etree.ElementTree as ET

counts = {"passed": 0, "failed": 0, "skipped": 0}
for case in ET.parse(sys.argv[1]).getroot().iter("testcase"):
    if case.find("failure") is not None or case.get("status") == "fail":
        counts["failed"] += 1
    elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
        # A test that GTEST_SKIP left; a missing executable makes ctest itself fail.
        counts["skipped"] += 1
    else:
        counts["passed"] += 1
print(counts["passed"], counts["failed"], counts["skipped"])

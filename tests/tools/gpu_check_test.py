"""tools/gpu_check: what it makes of the output of the programs it runs, and that a run that is cut,
crashes or checks nothing does not pass."""

import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/lib"))

import gpu_check  # noqa: E402
import gpu_check_parse as parse  # noqa: E402
import gpu_check_report as report  # noqa: E402
import gpu_check_stages as stages  # noqa: E402
from gpu_check_run import Runner, Stage  # noqa: E402

LOG = """[ RUN      ] A.good
[       OK ] A.good (3 ms)
[ RUN      ] A.bad
a_test.cpp:7: Failure
[  FAILED  ] A.bad, where GetParam() = 4-byte object (3 ms)
[ RUN      ] A.left_out
[  SKIPPED ] A.left_out (0 ms)
[ RUN      ] A.last
"""


def case(name, **fields):
    return {"name": name, "status": "RUN", "result": "COMPLETED", **fields}


class Parse(unittest.TestCase):
    def test_a_report_gives_failed_and_skipped_cases_by_name(self):
        text = json.dumps({"testsuites": [{"name": "A", "testsuite": [
            case("good"), case("bad", failures=[{}]), case("left_out", result="SKIPPED")]}]})
        self.assertEqual(parse.gtest_counts(text, ""), (1, ["A.bad"], ["A.left_out"]))

    def test_without_a_report_the_case_that_it_ended_in_has_failed(self):
        passed, failed, skipped = parse.gtest_counts(None, LOG)
        self.assertEqual((passed, skipped), (1, ["A.left_out"]))
        self.assertEqual(failed, ["A.bad", "A.last (the program ended in it)"])
        self.assertEqual(parse.failure_lines(LOG), ["a_test.cpp:7: Failure"])

    def test_sanitizer_summaries(self):
        hazards = "RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warnings)"
        self.assertEqual(parse.sanitizer_errors(hazards), 3)
        self.assertEqual(parse.sanitizer_errors("========= ERROR SUMMARY: 0 errors"), 0)
        self.assertEqual(parse.sanitizer_errors("========= ERROR SUMMARY: 1 error"), 1)
        self.assertIsNone(parse.sanitizer_errors("no summary"))

    def test_times_and_kernels_of_stats(self):
        lines = parse.stats("kernels:    4 compiled (1.5 ms), 2 loaded (0.5 ms)\n"
                            "weights:    4.6 GiB in 323.0 ms\n")
        self.assertEqual(parse.kernels_compiled(lines), 4)
        self.assertEqual(parse.milliseconds(lines["kernels"]), 2)
        self.assertEqual(parse.milliseconds(lines["weights"]), 323)
        self.assertIsNone(parse.kernels_compiled({}))

    def test_texts_part_where_one_ends_too(self):
        self.assertIsNone(parse.first_difference("abc", "abc"))
        self.assertEqual(parse.first_difference("abc", "abd"), (2, "c", "d"))
        self.assertEqual(parse.first_difference("ab", "abd"), (2, "", "d"))


class Stages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.bin = pathlib.Path(self.folder.name) / "bin"
        self.bin.mkdir()

    def program(self, name, text):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run_stage(self, name, seconds=20.0):
        options = gpu_check.parse_options([
            "--root", ".", "--bin", str(self.bin), "--libraries", "", "--work", self.folder.name,
            "--out", self.folder.name, "--models", self.folder.name, "--shape", "llama-tiny"])
        context = stages.Context(options, Runner(self.folder.name, "", {}))
        self.addCleanup(context.clean)
        stage = Stage(name, seconds)
        stages.STAGES[name][0](context, stage)
        return stage.result()

    def test_a_program_that_runs_no_case_or_crashes_fails(self):
        for text in ("exit 0", "kill -SEGV $$", "echo '[ RUN      ] A.b'; exit 3"):
            self.program("gpu_kernels_test", text)
            self.assertEqual(self.run_stage("kernels")["status"], "failed", text)

    def test_a_case_past_the_limit_is_ended_and_named(self):
        self.program("gpu_kernels_test", "echo '[ RUN      ] A.slow'; sleep 60")
        result = self.run_stage("kernels", 0.5)
        self.assertLess(result["seconds"], 10)
        self.assertEqual(result["problems"][0], "A.slow (the program ended in it)")

    def test_a_kernel_compiled_at_a_strict_start_fails(self):
        for compiled, status in ((0, "passed"), (1, "failed")):
            made = json.dumps(
                {"target": "sm_90a", "kernels": 1, "compiled": 1, "ms": 1, "digest": "d"})
            self.program("quern", f"""case $1 in
              compile) echo '{made}' ;;
              run) echo 'kernels: {compiled} compiled (0 ms), 9 loaded (1.0 ms)' >&2
                   echo 'weights: 1 GiB in 10.0 ms' >&2 ;;
            esac""")
            result = self.run_stage("strict")
            self.assertEqual(result["status"], status)
            self.assertAlmostEqual(result["details"]["start_over_weights"], 1.1)

    def test_other_text_or_perplexity_on_the_gpu_fails(self):
        (pathlib.Path(self.folder.name) / stages.REAL_MODEL).touch()
        for text, perplexity, failed in (("a b", 20.01, 0), ("a c", 20.01, 1), ("a b", 20.1, 1)):
            self.program("quern", f"""text='a b' perplexity=20
              case "$*" in *cuda*) text='{text}' perplexity={perplexity} ;; esac
              if [ $1 = run ]; then echo "$text"; exit; fi
              echo "{{\\"perplexity\\": $perplexity}}" """)
            self.assertEqual(self.run_stage("real")["failed"], failed, text)

    def test_a_stage_without_time_fails_and_the_table_says_so(self):
        result = gpu_check.run_stage("doctor", None, 0)
        self.assertEqual(result["status"], "failed")
        whole = {"gpus": [], "stages": [result], "seconds": 0,
                 "totals": {"passed": 0, "failed": 1, "skipped": 0}}
        self.assertIn("the time of the whole run", report.table(whole))


if __name__ == "__main__":
    unittest.main()

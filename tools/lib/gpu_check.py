"""The checks of tools/gpu_check, stage by stage; that script finds the programs and calls this."""

import argparse
import datetime
import pathlib
import platform
import signal
import sys
import time

import gpu_check_report as report
from gpu_check_run import Runner, Stage
from gpu_check_stages import NOT_IN_QUICK, ONLY_WHEN_NAMED, STAGES, Context


def parse_options(arguments):
    parser = argparse.ArgumentParser(
        prog="gpu_check", usage="tools/gpu_check [OPTION...]; --help lists them")
    for name in ("root", "bin", "libraries", "work", "out", "models"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--limit", type=float)
    options = parser.parse_args(arguments)
    if options.only:
        options.stages = options.only.split(",")
        unknown = [name for name in options.stages if name not in STAGES]
        if unknown:
            parser.error(f"no stage is called {unknown[0]}; there are {' '.join(STAGES)}")
    else:
        left_out = ONLY_WHEN_NAMED + (NOT_IN_QUICK if options.quick else [])
        options.stages = [name for name in STAGES if name not in left_out]
    if options.limit is None:
        options.limit = 200.0 if options.quick else 480.0
    return options


def environment(options):
    """What the programs are told, beside what the caller's environment has."""
    work = pathlib.Path(options.work)
    values = {
        "QUERN_TEST_DATA_DIR": f"{options.root}/tests/data",
        # Compiled once, for the sanitizers too.
        "QUERN_TEST_KERNELS": str(work / "test-kernels"),
    }
    if options.packed:
        values["QUERN_TEST_STORE_DIR"] = str(work / "test-store")
        values["QUERN_CACHE_DIR"] = str(work / "store")
    return values


def run_stage(name, context, end):
    """Runs a stage within its limit and the whole run's, and returns its result."""
    function, limit = STAGES[name]
    stage = Stage(name, min(limit, end - time.monotonic()))
    if stage.limit < 1:
        stage.limit = 0
        stage.check(False, "not run: the time of the whole run (--limit) is over")
        return stage.result()
    try:
        function(context, stage)
    except Exception as error:  # output that no one foresaw: this stage's fault, not the run's end
        stage.check(False, f"{type(error).__name__}: {error}")
    return stage.result()


def main(arguments):
    options = parse_options(arguments)
    start = time.monotonic()
    runner = Runner(options.work, options.libraries, environment(options))
    context = Context(options, runner)

    def stop(number, _frame):
        runner.end_child()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    result = {
        "version": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "host": {"system": platform.platform(), "shape": options.shape, "limit_s": options.limit,
                 "stages": options.stages},
        "gpus": report.gpus(),
        "stages": [],
        "totals": {"passed": 0, "failed": 0, "skipped": 0},
        "seconds": 0.0,
    }
    try:
        for name in options.stages:
            print(f"==> {name}", flush=True)
            stage = run_stage(name, context, start + options.limit)
            result["stages"].append(stage)
            for count in result["totals"]:
                result["totals"][count] += stage[count]
            result["seconds"] = round(time.monotonic() - start, 1)
            if name == "speed":
                result["gpus_after_speed"] = report.gpus()
            report.write(pathlib.Path(options.out), runner.logs, result)
            for problem in stage["problems"][:8]:
                print(f"    {problem[:200]}", flush=True)
    finally:
        context.clean()
    print(report.table(result), end="", flush=True)
    return 1 if result["totals"]["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

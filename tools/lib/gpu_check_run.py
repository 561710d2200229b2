"""Runs the programs of tools/gpu_check: each under a time limit, with its output kept as a log."""

import os
import pathlib
import signal
import subprocess
import time


class Stage:
    """One line of the result: what was checked, and what came of it."""

    def __init__(self, name, limit):
        self.name = name
        self.limit = limit
        self.start = time.monotonic()
        self.deadline = self.start + limit
        self.passed = self.failed = self.skipped = 0
        self.problems = []
        self.details = {}

    def check(self, ok, problem):
        """Counts a check; `problem` says what is wrong where it failed."""
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            self.problems.append(problem)
        return ok

    def skip(self, reason, count=1):
        self.skipped += count
        self.problems.append(f"skipped: {reason}")

    def status(self):
        if self.failed:
            return "failed"
        return "passed" if self.passed else "skipped"

    def result(self):
        return {
            "name": self.name,
            "status": self.status(),
            "seconds": round(time.monotonic() - self.start, 1),
            "limit_s": round(self.limit, 1),
            "passed": self.passed,
            "failed": self.failed,
            "skipped": self.skipped,
            "problems": self.problems,
            "details": self.details,
        }


class Run:
    """What a command left."""

    def __init__(self, code, out, err, seconds, timed_out):
        self.code = code
        self.out = out
        self.err = err
        self.seconds = seconds
        self.timed_out = timed_out

    def last_line(self):
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return lines[-1][:300] if lines else "it printed nothing"


class Runner:
    """Starts programs with one environment; logs go to WORK/logs."""

    def __init__(self, work, libraries, environment):
        self.logs = pathlib.Path(work) / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.environment = {**os.environ, **environment}
        self.libraries = libraries
        self.child = None

    def end_child(self):
        """Ends the running command and what it started."""
        if self.child is not None and self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)

    def read(self, path):
        return path.read_bytes().decode("utf-8", "replace")

    def run(self, stage, name, command, libraries=True, **environment):
        """Runs a command within what is left of the stage's time and returns its Run."""
        env = {**self.environment, **environment}
        if libraries:
            env["LD_LIBRARY_PATH"] = self.libraries
        start = time.monotonic()
        left = stage.deadline - start
        out, err = self.logs / f"{name}.out", self.logs / f"{name}.err"
        if left <= 0:
            return Run(None, "", "not started: the stage's time is over", 0.0, True)
        timed_out = False
        with open(out, "wb") as to_out, open(err, "wb") as to_err:
            to_err.write(f"$ {' '.join(map(str, command))}\n".encode())
            to_err.flush()
            self.child = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=to_out, stderr=to_err,
                env=env, process_group=0)
            try:
                code = self.child.wait(left)
            except subprocess.TimeoutExpired:
                timed_out = True
                self.end_child()
                code = self.child.wait()
        # The first line names the command; it is the log's alone.
        text = self.read(err).partition("\n")[2]
        return Run(code, self.read(out), text, time.monotonic() - start, timed_out)

    def must(self, stage, name, command, **environment):
        """Runs a command that has to succeed, as a check of the stage; None where it did not."""
        run = self.run(stage, name, command, **environment)
        if run.timed_out:
            ok = stage.check(False, f"{name}: past the time limit after {run.seconds:.0f} s")
        else:
            ok = stage.check(run.code == 0, f"{name}: exit status {run.code}: {run.last_line()}")
        return run if ok else None

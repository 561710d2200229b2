"""The stages of tools/gpu_check. Each takes the context and its Stage, and reports into it."""

import json
import os
import pathlib
import shutil
import tempfile

import gpu_check_parse as parse

# compute-sanitizer: every kernel family in small cases. racecheck is slow, and synccheck follows a
# limited number of barriers: they have fewer cases. racecheck does not follow barriers at which a
# lane arrives for its warp, as in decode kernels whose warps take turns: it sees those with every
# lane arriving (GemmTurns), and no model.
SANITIZED = ("*Flash*/0:*Flash*/1:*Flash*/2:*Flash*/7:*Flash*/11:*Wave*/1:*QkvPost*:*Norm*:Gather*:"
             "Add*:*EmbedType*/9:*GemmTile*:*Glu*:Store*:*SelectVocabulary*/3-*Mutants*")
SANITIZED_FEW = ("*Flash*/0:*Flash*/2:*Wave*/0:*GemmTile*:*QkvPost*/qwen3:*NormWidth*/0:"
                 "*SelectVocabulary.launch*/3")
SANITIZED_MODEL = "*GpuModelTest.logits*/llama"
SANITIZERS = {
    "memcheck": (SANITIZED, True, []),
    "initcheck": (SANITIZED, True, []),
    "racecheck": (f"{SANITIZED_FEW}:*GemmTurns*-*GemmTile*turns:*GemmTile*shared", False, []),
    "synccheck": (SANITIZED_FEW, True, ["--num-cuda-barriers", "65536"]),
}
REAL_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = "A quern is a hand mill. People have used it for thousands of years to"
DEPTH = 32768
# Floors for llama-3.1-8b as q4_k_m on an H200, tokens per second; and the time to a first token
# over that of the weights. They are shown as met or missed, and fail nothing.
GOALS = {"pp2048": 14000, "tg128": 400, f"tg32 @ d{DEPTH}": 220}
START_GOAL = 1.25


def has_space(folder, needed):
    writable = folder.is_dir() and os.access(folder, os.W_OK)
    return writable and shutil.disk_usage(folder).free > needed


class Context:
    """What the stages share."""

    def __init__(self, options, runner):
        self.options = options
        self.runner = runner
        self.bin = pathlib.Path(options.bin)
        self.work = pathlib.Path(options.work)
        self.quern = self.bin / "quern"
        self.scratch = None  # folder of the synthetic model, outside `work`
        self.model = None

    def synthetic_model(self, stage):
        """The synthetic model's file, made on first use, in memory where there is room; or None."""
        if self.model is not None:
            return self.model
        small = self.options.shape.endswith(("-tiny", "-long"))
        needed = 1 << 26 if small else 6 << 30
        folders = [pathlib.Path("/dev/shm"), pathlib.Path(os.environ.get("TMPDIR", "/tmp"))]
        for folder in folders:
            if not has_space(folder, needed):
                continue
            self.clean()
            self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="gpu_check.", dir=folder))
            path = self.scratch / "synthetic.gguf"
            if not self.runner.must(stage, "synth", [
                    self.quern, "synth", self.options.shape, "--mix", "q4_k_m", "-o", path]):
                return None
            self.model = path
            return path
        stage.skip(f"no room for the {self.options.shape} file in {' or '.join(map(str, folders))}")
        return None

    def clean(self):
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)


def doctor(context, stage):
    run = context.runner.must(stage, "doctor", [context.quern, "doctor"])
    if run is None:
        return
    stage.details["lines"] = run.out.splitlines()
    for subject in ("cuda:0", "nvrtc"):
        stage.check(any(line.split()[:2] == ["ok", subject] for line in run.out.splitlines()),
                    f"doctor: {subject} is not ok")


def run_tests(context, stage, program, name, prefix=(), pattern=None, **environment):
    """Runs a test program, adds its cases to the stage and returns the Run."""
    report = context.work / f"{name}.json"
    command = [*prefix, context.bin / program, f"--gtest_output=json:{report}"]
    if pattern is not None:
        command.append(f"--gtest_filter={pattern}")
    run = context.runner.run(stage, name, command, QUERN_REQUIRE_GPU="1", **environment)
    text = report.read_text() if report.exists() else None
    passed, failed, skipped = parse.gtest_counts(text, run.out)
    stage.passed += passed
    for case in failed:
        stage.check(False, case)
    for case in skipped:
        stage.skip(case)
    stage.problems += parse.failure_lines(run.out)
    if run.timed_out:
        stage.check(False, f"{name}: past the time limit after {run.seconds:.0f} s")
    elif passed + len(failed) + len(skipped) == 0:
        stage.check(False, f"{name}: no case ran: {run.last_line()}")
    elif run.code != 0 and not failed:
        stage.check(False, f"{name}: exit status {run.code}: {run.last_line()}")
    return run


def kernels(context, stage):
    run_tests(context, stage, "gpu_kernels_test", "kernels")


def models(context, stage):
    run_tests(context, stage, "gpu_model_test", "models")


def sanitizer(context, stage):
    tool = stage.name
    program = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin")
    if program is None:
        stage.skip("compute-sanitizer is not installed; it comes with the CUDA toolkit")
        return
    kernel_cases, with_model, extra = SANITIZERS[tool]
    runs = [("gpu_kernels_test", kernel_cases)]
    if with_model:
        runs.append(("gpu_model_test", SANITIZED_MODEL))
    for test, pattern in runs:
        name = f"{tool}_{test}"
        run = run_tests(context, stage, test, name, pattern=pattern,
                        prefix=[program, "--tool", tool, "--error-exitcode", "66", *extra])
        log = run.out + run.err
        if "Device not supported" in log:
            stage.passed = stage.failed = 0
            stage.problems.clear()
            stage.skip("compute-sanitizer does not support this machine's GPU set-up")
            return
        errors = parse.sanitizer_errors(log)
        stage.details[name] = {"errors": errors, "seconds": round(run.seconds, 1)}
        if "overflow of tracked cuda::barrier" in log:
            stage.problems.append(f"{name}: more barriers than it follows; its errors mean nothing")
        if errors is not None or not run.timed_out:
            stage.check(errors == 0, f"{name}: {'no summary' if errors is None else errors} errors")


def real(context, stage):
    model = pathlib.Path(context.options.models) / REAL_MODEL
    if not model.is_file():
        stage.skip(f"{model} is not there; name its folder with --models")
        return
    text = pathlib.Path(context.options.root) / "tests/data/text/essays.txt"
    texts, perplexities, clamped = {}, {}, 0
    for device in ("cpu", "cuda"):
        run = context.runner.must(stage, f"greedy_{device}", [
            context.quern, "run", model, "-p", PROMPT, "-n", "200", "--temp", "0",
            "--device", device])
        if run is not None:
            texts[device] = run.out
            clamped += parse.saturated(run.err)
        run = context.runner.must(stage, f"perplexity_{device}", [
            context.quern, "perplexity", model, "-f", text, "--json", "--device", device])
        if run is not None:
            perplexities[device] = json.loads(run.out)["perplexity"]
            clamped += parse.saturated(run.err)
    stage.details = {"saturation_warnings": clamped, "perplexity": perplexities}
    if len(texts) == 2:
        apart = parse.first_difference(texts["cpu"], texts["cuda"])
        stage.details["characters"] = len(texts["cpu"])
        if apart is not None:
            stage.details["first_difference"] = {
                "character": apart[0], "cpu": apart[1], "cuda": apart[2]}
        at, left, right = apart or (0, "", "")
        stage.check(apart is None,
                    f"greedy text differs at character {at}: cpu {left!r}, cuda {right!r}")
    if len(perplexities) == 2:
        change = perplexities["cuda"] / perplexities["cpu"] - 1
        stage.details["perplexity_change"] = change
        stage.check(abs(change) <= 0.002, f"perplexity differs by {change:+.3%}, more than 0.2 %")


def strict(context, stage):
    model = context.synthetic_model(stage)
    if model is None:
        return
    bundle = context.work / "bundle.qplan"
    run = context.runner.must(stage, "compile", [
        context.quern, "compile", model, "--device", "cuda", "-o", bundle, "--json"])
    if run is None:
        return
    made = json.loads(run.out)
    stage.details["compile"] = {key: made[key] for key in ("target", "kernels", "compiled", "ms")}
    starts = []
    for i in range(3):
        # A store that has nothing: all kernels must come from the bundle.
        run = context.runner.must(stage, f"strict_{i}", [
            context.quern, "run", bundle, "--model", model, "--tokens", "1,2,3", "-n", "1",
            "--store", "strict", "--stats", "--trust", made["digest"]],
            QUERN_CACHE_DIR=str(context.work / "empty-store"))
        if run is None:
            return
        lines = parse.stats(run.err)
        compiled = parse.kernels_compiled(lines)
        stage.check(compiled == 0, f"strict_{i}: {compiled} kernels compiled, not 0")
        times = {name: parse.milliseconds(lines.get(name, ""))
                 for name in ("open", "plan", "kernels", "weights", "prompt")}
        starts.append({"wall_ms": round(run.seconds * 1e3, 1),
                       "start_ms": round(sum(times.values()), 1),
                       "times_ms": times, "lines": lines})
    starts.sort(key=lambda start: start["start_ms"])
    median = starts[1]
    weights = median["times_ms"]["weights"]
    stage.details["starts"] = starts
    stage.details["weights_ms"] = weights
    stage.details["start_ms"] = median["start_ms"]
    stage.details["start_over_weights"] = median["start_ms"] / weights if weights else None
    stage.details["goal"] = START_GOAL


def speed(context, stage):
    model = context.synthetic_model(stage)
    if model is None:
        return
    # Apart: with both -p and the depth, the context would have to hold the prompt behind the depth.
    calls = {
        "speed_short": ["-p", "512,2048", "-n", "128", "-r", "3"],
        "speed_deep": ["-p", "0", "-n", "32", "-d", DEPTH, "--ctx", DEPTH + 1024, "-r", "2"],
    }
    rows = []
    stage.details["loads"] = {}
    for name, arguments in calls.items():
        run = context.runner.must(stage, name, [
            context.quern, "bench", model, "--device", "cuda", "-o", "json", *arguments])
        if run is not None:
            bench = json.loads(run.out)
            rows += bench["rows"]
            stage.details["loads"][name] = bench["load"]
    for row in rows:
        row["goal_ts"] = GOALS.get(row["test"]) if context.options.shape == "llama-3.1-8b" else None
    stage.details["rows"] = rows


def kernel_speed(context, stage):
    run = context.runner.must(stage, "kernel_speed", [context.bin / "gpu_kernels_bench"])
    if run is not None:
        stage.details["rows"] = [json.loads(line) for line in run.out.splitlines()
                                 if line.startswith("{")]


# In order: what a shorter run must not lose comes first. Seconds are limits; what is left of the
# whole run's time can make them smaller.
STAGES = {
    "doctor": (doctor, 20),
    "kernels": (kernels, 90),
    "models": (models, 90),
    "real": (real, 60),
    "strict": (strict, 60),
    "speed": (speed, 60),
    "memcheck": (sanitizer, 70),
    "initcheck": (sanitizer, 70),
    "racecheck": (sanitizer, 90),
    "synccheck": (sanitizer, 150),
    "kernel_speed": (kernel_speed, 180),
}
NOT_IN_QUICK = [*SANITIZERS]
ONLY_WHEN_NAMED = ["kernel_speed"]

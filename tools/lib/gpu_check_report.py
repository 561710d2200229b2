"""The result of tools/gpu_check: one JSON file, one table, one archive of logs."""

import io
import json
import os
import pathlib
import shutil
import subprocess
import tarfile

SMI_FIELDS = {
    "name": str, "driver_version": str, "memory.total": int, "memory.used": int, "clocks.sm": int,
    "clocks.mem": int, "clocks.max.sm": int, "clocks.max.mem": int, "temperature.gpu": int,
    "power.draw": float, "power.limit": float, "compute_mode": str, "mig.mode.current": str,
}


def gpus():
    """What nvidia-smi says of each GPU (MiB, MHz, degrees, watts); empty where it says nothing."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if run.returncode != 0:
        return []
    found = []
    for line in run.stdout.splitlines():
        values = {}
        for (name, kind), text in zip(SMI_FIELDS.items(), line.split(", ")):
            try:
                values[name.replace(".", "_")] = kind(text.strip())
            except ValueError:  # "[N/A]"
                values[name.replace(".", "_")] = None
        found.append(values)
    return found


def write_whole(path, data):
    """The file appears when it is whole: a run that is cut leaves the last state."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    os.replace(new, path)


def stage_line(stage):
    note = stage["problems"][0] if stage["problems"] else ""
    return (f"{stage['name']:<12} {stage['status']:<8} {stage['passed']:>6} {stage['failed']:>6} "
            f"{stage['skipped']:>7} {stage['seconds']:>8.1f}  {note[:110]}").rstrip()


def real_lines(details):
    lines = []
    perplexity = details.get("perplexity", {})
    if "perplexity_change" in details:
        lines.append(f"perplexity: cpu {perplexity['cpu']:.4f}, cuda {perplexity['cuda']:.4f} "
                     f"({details['perplexity_change']:+.4%})")
    if "characters" in details:
        apart = details.get("first_difference")
        lines.append("greedy text: " + (f"differs at character {apart['character']}" if apart
                                        else f"{details['characters']} characters, equal"))
    if details.get("saturation_warnings"):
        lines.append(f"saturation: {details['saturation_warnings']} warnings")
    return lines


def strict_lines(details):
    if "start_ms" not in details:
        return []
    ratio = details["start_over_weights"]
    shown = "?" if ratio is None else f"{ratio:.2f}"
    return [f"start from a bundle: {details['start_ms']:.0f} ms, weights "
            f"{details['weights_ms']:.0f} ms of them: {shown} x (goal {details['goal']}); "
            f"compiling took {details['compile']['ms'] / 1e3:.1f} s"]


def speed_lines(details):
    lines = []
    for row in details.get("rows", []):
        control = row.get("control") or {}
        beside = "".join(f"  {name} {control[key]:.0f}" for name, key in
                         (("cuBLAS TFLOP/s", "gemm_tflops"), ("copy GB/s", "copy_gb_per_s"))
                         if control.get(key) is not None)
        goal = row["goal_ts"]
        met = ""
        if goal is not None:
            met = f"  goal {goal}: {'met' if row['avg_ts'] >= goal else 'missed'}"
        lines.append(f"{row['test']:<16} {row['avg_ts']:>10.1f} +- {row['stddev_ts']:<7.1f} t/s"
                     f"{beside}{met}")
    return lines


def table(result):
    """The result for people."""
    lines = [f"{gpu['name']}, driver {gpu['driver_version']}, {gpu['memory_total']} MiB, SM clock "
             f"{gpu['clocks_sm']} of {gpu['clocks_max_sm']} MHz" for gpu in result["gpus"]]
    lines.append(f"{'stage':<12} {'status':<8} {'passed':>6} {'failed':>6} {'skipped':>7} "
                 f"{'seconds':>8}  note")
    lines += [stage_line(stage) for stage in result["stages"]]
    details = {stage["name"]: stage["details"] for stage in result["stages"]}
    lines += real_lines(details.get("real", {}))
    lines += strict_lines(details.get("strict", {}))
    lines += speed_lines(details.get("speed", {}))
    totals = result["totals"]
    lines.append(f"{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} "
                 f"skipped, {result['seconds']:.0f} s")
    return "\n".join(lines) + "\n"


def write(out, logs, result):
    """gpu_check.json, gpu_check.txt and logs.tar.gz, as they stand now."""
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "gpu_check.json", (json.dumps(result, indent=1) + "\n").encode())
    write_whole(out / "gpu_check.txt", table(result).encode())
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=3) as tar:
        for path in sorted(pathlib.Path(logs).iterdir()):
            tar.add(path, arcname=f"logs/{path.name}")
    write_whole(out / "logs.tar.gz", archive.getvalue())

"""cgxsim: published figures beside the timeline's (tolerance over error, so 1 is just within it), the timeline beside the
engines (likewise), and how long a large scene takes. Nothing here depends on the machine's speed but the last."""

import glob
import json
import os
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ERROR_MIN = 0.01  # of what is printed; a figure that is hit has no ratio
LARGE_LIMIT_S = 60.0
ENGINE_ERROR_MAX = 5.0  # percent
ENGINE_MODELS = {"resnet50": "resnet50", "transformer": "bert", "vgg16": "vgg16"}  # architectures of cgxsim
ENGINE_MACHINES = (8, 16, 32, 64)
ENGINE_CODECS = ("fp32", "maxmin:4")
ENGINE_LINKS = ("1gbit", "10gbit", "25gbit")


def ask(options, *arguments):
    """Its JSON, also where a figure is missed."""
    program = os.path.join(options.build, "bin", "cgxsim")
    done = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def published(options, report):
    for path in sorted(glob.glob(os.path.join(HERE, "published", "*.txt"))):
        for row in ask(options, "--validate", path)["rows"]:
            if options.wants(row["id"]):
                report.add("cgxsim", row["id"], row["ours"], "published", row["published"],
                           row["tolerance"] / max(row["error"], ERROR_MIN), "%" if row["unit"] == "points" else "times",
                           f"off by {row['error']:.1f} {row['unit']}, tolerance {row['tolerance']:g}")


def engine_cases():
    """(name, model, codec, link, machines) of the grid."""
    for model in ENGINE_MODELS:
        for machines in ENGINE_MACHINES:
            for codec in ENGINE_CODECS:
                for link in ENGINE_LINKS:
                    yield f"engines/{model}/{codec.replace(':', '')}/{link}/n{machines}", model, codec, link, machines


def beside_engines(options, report):
    """Quick: what takes seconds."""
    left_out = []
    for case, model, codec, link, machines in engine_cases():
        if not options.wants(case):
            continue
        if options.quick and machines > ENGINE_MACHINES[0]:
            left_out.append(case)
            continue
        row = ask(options, "--core", "engines", "--model", ENGINE_MODELS[model], "--machines", str(machines), "--link", link,
                  "--policy", f"codec: {codec}")["runs"][0]
        error = 100 * (row["timeline_ms"] / row["step_ms"] - 1)
        report.add("cgxsim", case, row["timeline_ms"], "engines", row["step_ms"], ENGINE_ERROR_MAX / max(abs(error), ERROR_MIN), "ms",
                   f"off by {error:+.1f} %, tolerance {ENGINE_ERROR_MAX:g}")
    if left_out:
        report.skip("cgxsim", f"engines of {ENGINE_MACHINES[1]} machines and more: take minutes; tests/bench/run cgxsim", left_out)


def large(options, report):
    start = time.monotonic()
    ask(options, "--model", "resnet50", "--machines", "1024", "--link", "100gbit")
    took = time.monotonic() - start
    report.add("cgxsim", "simulate-1024", took, "limit", LARGE_LIMIT_S, LARGE_LIMIT_S / took, "s")


def run(options, report):
    if options.peers_only:
        return
    published(options, report)
    beside_engines(options, report)
    if options.wants("simulate-1024"):
        large(options, report)

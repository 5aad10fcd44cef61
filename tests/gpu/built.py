#!/usr/bin/env python3
"""Everything of a normal build that this machine's GPU can run: kernels, driver, workers, real daemons, torch; then times, alone.

usage: built.py [--out FOLDER] [--seconds N] [--only TEXT,TEXT...] [--at-once N]

A line per part, and one per part or test that has not run, with the reason; FOLDER gets what each printed. Ends with 1 if a part failed. N seconds: parts that have not begun by then are named and left out.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ.setdefault("CGX_BUILD_DIR", os.path.join(ROOT, "build", "release"))
os.environ.update(CGX_TEST_GPU="1", CGX_KERNEL_IMAGES=os.path.join(BUILD, "lib"), PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1")
os.environ["PYTHONPATH"] = os.pathsep.join(os.path.join(ROOT, part) for part in ("client/python", "tests/e2e", "tests/client", "tests/gpu"))
LESS_MEMORY = "DriverMemory.FreeMemoryBecomesLess"  # if nobody else takes or frees any
TIMED = (".Faults.", ".DaemonGone.")  # tests with limits in seconds
SCRIPTS = ("worker_test", "faults_test", "again_test", "queued_test", "ceilings_test", "staging_test", "bindings_test",
           "torch_gpu_test")
PROGRAMS = ("gpu_worker_memory", "gpu_losses", "gpu_worker_site", "gpu_imports")
NOT_HERE = {  # what a build has, too, and one GPU does not run
    "several_test": "needs several GPUs, and plays them on the stand-in only",
    "bench device": "counts what the stand-in counts; times are those of `training` and `bench`",
    "gpu_standin": "asks the stand-in for what a GPU does not do on demand",
    "gpu_fiber_warp": "needs no GPU: a warp of this processor",
    "gpu_cuda_header": "needs no GPU: the driver's header against ours",
    "fatbin_test": "needs no GPU: machine code is read",
}
CHECKED = {"memcheck": ("maxmin", "fp8", "topk", "randomk", "threshold"), "racecheck": ("maxmin", "natural", "topk", "randomk")}


def codecs():
    with open(os.path.join(ROOT, "kernels", "codecs.def"), encoding="utf-8") as file:
        return re.findall(r'^X\(\w+, \d+, "(\w+)"', file.read(), re.MULTILINE)


def built(name):
    return os.path.join(BUILD, "bin", name)


def tests_of(script):
    """The names of its tests, a part each: they run side by side."""
    listed = subprocess.run([sys.executable, "-c", f"import unittest, {script} as m\n"
                             "for suite in unittest.defaultTestLoader.loadTestsFromModule(m):\n"
                             "  for test in suite: print('.'.join(test.id().split('.')[-2:]))"], capture_output=True, text=True)
    if listed.returncode != 0:
        return [(script, [sys.executable, "-c", f"import {script}"], 60)]
    return [(f"{script}.{name}", [sys.executable, os.path.join(HERE, f"{script}.py"), "-v", name], 90) for name in listed.stdout.split()]


def parts():
    """(name, command, seconds) of what may run side by side."""
    yield "promises of the driver", [built("test_gpu_driver"), f"--gtest_filter=-{LESS_MEMORY}"], 200
    for name in PROGRAMS:
        yield name, [built(f"test_{name}")], 200
    for codec in codecs():
        yield f"agree {codec}", [built("gpu_agree_driver"), "40", "1", codec], 90
    for script in SCRIPTS:
        yield from (part for part in tests_of(script) if not any(name in part[0] for name in TIMED))
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    for tool, codecs in CHECKED.items():
        for codec in codecs:
            command = [sanitizer, "--tool", tool, "--error-exitcode", "3", built("gpu_agree_driver"), "1", "1", codec]
            yield f"{tool} {codec}", command if os.path.exists(sanitizer) else None, 60


def alone(out):
    """What is timed, or has limits in seconds."""
    yield from (part for part in tests_of("faults_test") if any(name in part[0] for name in TIMED))
    yield LESS_MEMORY, [built("test_gpu_driver"), f"--gtest_filter={LESS_MEMORY}"], 30
    yield "bench", [built("gpu_bench"), "--json", os.path.join(out, "kernels.json")], 120
    bench = os.path.join(ROOT, "tests", "bench", "run")
    yield "training", [sys.executable, bench, "gpu", "--quick", "--json", os.path.join(out, "training.json")], 200


def not_run(said):
    """(test, reason) of what a part has skipped itself: by unittest, by GoogleTest, or it says so on a line of its own."""
    by_unittest = re.findall(r"^(test_\w+) \(.*\)(?:\n.*)? \.\.\. skipped ['\"](?:skipped: )?(.*)['\"]$", said, re.MULTILINE)
    by_google = re.findall(r": Skipped\n(?:skipped: )?(.*)\n(?:.*\n)*?\[  SKIPPED \] (\S+) \(", said)
    found = by_unittest + [(name, why) for why, name in by_google]
    return found or [("", why) for why in re.findall(r"^skipped: (.*)$", said, re.MULTILINE)]


class Runner:
    def __init__(self, options):
        self.out, self.until = options.out, time.monotonic() + options.seconds
        self.only, self.log = options.only.split(","), open(os.path.join(options.out, "all.log"), "w", encoding="utf-8")
        self.passed, self.skipped, self.failed = 0, 0, []

    def name_what_is_not_here(self):
        for name, why in NOT_HERE.items():
            if any(text in name for text in self.only):
                self.skipped += 1
                print(f"skipped: {name}: {why}", flush=True)

    def run(self, part):
        name, command, seconds = part
        if not any(text in name for text in self.only):
            return
        left = self.until - time.monotonic()
        why = ("not installed" if command is None else "not built" if not os.path.exists(command[0]) else
               "no time is left" if left < 5 else None)
        if why is not None:
            self.skipped += 1
            print(f"skipped: {name}: {why}", flush=True)
            return
        began = time.monotonic()
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                  timeout=min(seconds, left), cwd=ROOT)
            status, said = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            # Of a checker, what it has found until then counts.
            status = "stopped" if left < seconds or name.startswith(tuple(CHECKED)) else "too slow"
            said = (error.stdout or b"").decode(errors="replace")
        took = time.monotonic() - began
        self.log.write(f"==== {name}: {status}, {took:.1f} s\n{said}\n")
        self.log.flush()
        left_out = not_run(said) if status == 0 else []
        if status == "stopped" or (left_out and "[  PASSED  ]" not in said):
            self.skipped += 1
            print(f"skipped: {name}: {'; '.join(why for _, why in left_out) or 'by time'}, {took:.1f} s", flush=True)
        elif status == 0:
            self.passed += 1
            lines = [f"passed: {name}, {took:.1f} s"] + [f"    skipped: {test}: {why}" for test, why in left_out]
            print("\n".join(lines), flush=True)
        else:
            self.failed.append(name)
            print(f"FAILED: {name}: {status}, {took:.1f} s\n" + "\n".join(f"    {line[:300]}" for line in said.splitlines()[-6:]), flush=True)


def has_gpu():
    asked = "import ctypes; c = ctypes.CDLL('libcuda.so.1'); raise SystemExit(c.cuInit(0))"
    return subprocess.run([sys.executable, "-c", asked], capture_output=True).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(ROOT, "build", "gpu"))
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--only", default="")
    parser.add_argument("--at-once", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    options = parser.parse_args()
    if not has_gpu():
        print("skipped: no CUDA device")
        return 0
    if not os.path.exists(built("cgxd")):
        print(f"{built('cgxd')} is not there: build first (README.md), or set CGX_BUILD_DIR", file=sys.stderr)
        return 2
    os.makedirs(options.out, exist_ok=True)
    runner = Runner(options)
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(runner.run, parts()))
    for part in alone(options.out):
        runner.run(part)
    runner.name_what_is_not_here()
    print(f"{runner.passed} passed, {runner.skipped} skipped, {len(runner.failed)} failed {', '.join(runner.failed)}".rstrip())
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())

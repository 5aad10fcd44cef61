"""clang-tidy over the sources of a build, several at once; prints what it finds and ends with the number of files.

usage: analysis.py BUILD_FOLDER JOBS     The checks are those of .clang-tidy. tests/ is left out: nearly half of all files,
minutes spent on gtest's macros, and what is found there the sanitizers find, which run it.

The analyzer gives up on a function after NODES_MAX states. With its own limit, 225,000, it spends half of the stage's time
in the few functions that have more than 50,000. Reading the sources of a target several together, as the release does, was
tried: the analyzer must then be told to look into headers, and takes as long over those as their parsing takes.
"""

import concurrent.futures
import json
import os
import subprocess
import sys

NODES_MAX = 50_000
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT = [f"--extra-arg={word}" for word in ("-Xclang", "-analyzer-config", "-Xclang", f"max-nodes={NODES_MAX}")]


def sources(build):
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        paths = {os.path.relpath(entry["file"], ROOT) for entry in json.load(file)}
    # clang 14 knows no CUDA as new as what .cu files are compiled with; their bodies are headers of device_emulated.cc.
    return sorted(p for p in paths if not p.startswith(("build/", "..", "tests/")) and not p.endswith(".cu"))


def check(build, path):
    done = subprocess.run(["clang-tidy-14", "-p", build, "--quiet", "--extra-arg=-Wno-unknown-warning-option",
                           "--extra-arg=-Wthread-safety", *LIMIT, path],
                          cwd=ROOT, capture_output=True, text=True)
    return path, done.returncode, done.stdout


def main(build, jobs):
    failed = 0
    paths = sources(build)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for path, code, output in pool.map(lambda p: check(build, p), paths):
            if code:
                failed += 1
                print(f"FAILED {path}\n{output}")
    print(f"{len(paths) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))

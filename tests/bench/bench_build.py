#!/usr/bin/python3
"""build: compiler-seconds, that is processor time of compilers, per line, against revision BEFORE, built in the same run.

`all` is everything with tests, `quickstart` what deploy/quickstart builds. Lines are those of C, C++, .def and .proto files,
for `quickstart` without tests/. Without ccache and CUDA, on all cores: processor
time hardly depends on how many. Half an hour on two cores, so `all --quick` leaves it out.
As a compiler launcher (CGX_COMPILER_SECONDS names its log) this file runs its arguments and notes their processor time.
"""

import os
import resource
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BEFORE = "366f463"
WISHED = {"all": 1.9, "quickstart": 2.3}  # times fewer for each line: README.md says why
UNIT_SECONDS_MAX = 30
PROGRAMS = ["--target", "cgxd", "cgxctl", "cgx_shared"]
LOG = "CGX_COMPILER_SECONDS"


def clock(command):
    """Runs a compiler; one line of its seconds and its output."""
    code = subprocess.run(command).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = command[command.index("-o") + 1] if "-o" in command else "?"
    with open(os.environ[LOG], "a", encoding="utf-8") as file:
        file.write(f"{used.ru_utime + used.ru_stime:.3f} {output}\n")
    return code


class Build:
    """A build folder of one tree; each step builds some more of it."""

    def __init__(self, tree, folder, preset):
        self.folder, self.log = folder, folder + ".seconds"
        launcher = f"{sys.executable};{os.path.abspath(__file__)}"
        self.run("cmake", "--preset", preset, "-S", tree, "-B", folder, "-DCGX_CUDA=OFF",
                 f"-DCMAKE_C_COMPILER_LAUNCHER={launcher}", f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}", cwd=tree)

    def run(self, *command, cwd=None):
        done = subprocess.run(command, cwd=cwd, env={**os.environ, LOG: self.log}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}:\n{done.stdout[-3000:]}")

    def seconds(self, *targets):
        """{output: seconds} of what was compiled until now, these targets among it."""
        open(self.log, "a", encoding="utf-8").close()
        self.run("cmake", "--build", self.folder, "-j", str(os.cpu_count()), *targets)
        with open(self.log, encoding="utf-8") as file:
            lines = [line.split() for line in file]
        return {output: float(seconds) for seconds, output in lines}


def lines(tree, case):
    names = subprocess.run(["git", "-C", tree, "ls-files", "*.cc", "*.h", "*.c", "*.def", "*.proto"], check=True,
                           capture_output=True, text=True).stdout.split()
    total = 0
    for name in names:
        if case == "all" or not name.startswith("tests/"):
            with open(os.path.join(tree, name), "rb") as file:
                total += sum(1 for _ in file)
    return total


def say(report, case, ours, before, tree):
    name, seconds = max(ours.items(), key=lambda unit: unit[1])
    ours, before = sum(ours.values()), sum(before.values())
    our_lines, lines_before = lines(ROOT, case), lines(tree, case)
    target = before / lines_before * our_lines / WISHED[case]
    report.add("build", f"compile/{case}", ours, f"{BEFORE}/{WISHED[case]:g} per line", target, target / ours, "s",
               f"{1000 * ours / our_lines:.2f} ms a line of {our_lines}, {BEFORE}: {1000 * before / lines_before:.2f} ms "
               f"of {lines_before}; longest unit {seconds:.0f} s, {os.path.basename(name)}"
               + (f" (more than {UNIT_SECONDS_MAX} s)" if seconds > UNIT_SECONDS_MAX else ""))


def run(options, report):
    if options.quick:
        return report.skip("build", "compiles two revisions, half an hour; tests/bench/run build")
    if subprocess.run(["git", "-C", ROOT, "cat-file", "-e", BEFORE], stderr=subprocess.DEVNULL).returncode:
        return report.skip("build", f"revision {BEFORE} is not in this checkout's history")
    with tempfile.TemporaryDirectory(prefix="cgx-build-") as folder:
        tree = os.path.join(folder, "tree")
        subprocess.run(["git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, tree], check=True)
        subprocess.run(["git", "-C", tree, "checkout", "--quiet", BEFORE], check=True)
        before = Build(tree, os.path.join(folder, "before"), "release")
        programs = before.seconds(*PROGRAMS)
        if options.wants("compile/quickstart"):
            ours = Build(ROOT, os.path.join(folder, "quickstart"), "quickstart").seconds(*PROGRAMS)
            say(report, "quickstart", ours, programs, tree)
        if options.wants("compile/all"):
            say(report, "all", Build(ROOT, os.path.join(folder, "all"), "release").seconds(), before.seconds(), tree)


if __name__ == "__main__":
    sys.exit(clock(sys.argv[1:]))

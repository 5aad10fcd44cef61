"""Each header compiles alone, with the include path of its own folder's sources.

Those that a source of the same name includes first are left to clang-tidy (.ci/run analysis), which reads every source
alone, so that here less than half is left.
"""

import concurrent.futures
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

import tree

FLAG = re.compile(r"^-(I|isystem|D|f(?!sanitize)|m)")


def folder_flags(header):
    """What the build passes to sources of the header's folder, or of the closest parent that has any."""
    commands = tree.compile_commands()
    folder = os.path.dirname(header)
    while True:
        near = [c for source, c in commands.items()
                if (source.startswith(folder + "/") or not folder) and not source.endswith(".cu")]
        if near or not folder:
            break
        folder = os.path.dirname(folder)
    flags = {}
    for command in near:
        words = shlex.split(command)
        for word, following in zip(words, words[1:] + [""]):
            if FLAG.match(word) and not word.startswith("-march"):
                flags[(word, following) if word == "-isystem" else (word,)] = None
    return [word for flag in flags for word in flag] + ["-I" + tree.ROOT]


def is_c(header):
    """A header that C sources include has to be C."""
    return any(name == header or header.endswith("/" + name)
               for path in tree.files(".c") for _, name in tree.includes(path))


def read_by_analysis(header):
    """First thing in a source that .ci/analysis.py reads."""
    source = header[:-len(".h")] + ".cc"
    return (not header.startswith("tests/") and source in tree.compile_commands()
            and tree.includes(source)[:1] == [(False, header)])


def compile_alone(header, scratch):
    language, ending = (["-x", "c", "-std=gnu11"], ".c") if is_c(header) else (["-x", "c++", "-std=c++20"], ".cc")
    source = os.path.join(scratch, header.replace("/", "_") + ending)
    with open(source, "w", encoding="utf-8") as file:
        file.write(f'#include "{header}"\n')
    command = ["g++" if ending == ".cc" else "gcc", *language, "-Wall", "-Wextra", "-Wno-unused-function",
               *folder_flags(header), "-fsyntax-only", source]
    done = subprocess.run(command, capture_output=True, text=True)
    return header, done.stderr if done.returncode else ""


class Headers(unittest.TestCase):
    maxDiff = None

    def test_each_header_compiles_alone(self):
        headers = [h for h in tree.files(".h")
                   if not read_by_analysis(h) and (not h.startswith("kernels/cuda/") or shutil.which("nvcc"))]
        with tempfile.TemporaryDirectory() as scratch:
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                for header, error in pool.map(lambda h: compile_alone(h, scratch), headers):
                    with self.subTest(header=header):
                        self.assertEqual(error, "")

    def test_each_header_guards_itself(self):
        guard = re.compile(r"#pragma once|#ifndef \w+_H_?\b")
        self.assertEqual([h for h in tree.files(*tree.HEADER_ENDINGS) if not guard.search(tree.text(h))], [])


if __name__ == "__main__":
    unittest.main()

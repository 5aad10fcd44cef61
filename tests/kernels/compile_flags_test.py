"""The arithmetic is compiled as ARITHMETIC.md says: IEEE order everywhere, one instruction set per lane."""

import json
import os
import re
import shutil
import subprocess
import unittest

BUILD = os.environ["CGX_BUILD_DIR"]
SOURCES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LANES = {"avx2": {"-mavx2", "-mf16c"},
         "avx512": {"-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"}}
FORBIDDEN = re.compile(r"-Ofast|-ffast-math|-funsafe-math|-fassociative-math|-ffinite-math|-freciprocal|-ffp-contract=fast"
                       r"|-march=|-mtune=native|-mfma|-mdaz|-Ofast")


def commands():
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    return {name_of(e): e for e in entries if folder_of(e["file"]) == "kernels"}


def folder_of(path):
    """At the top of the source tree, or of the build's, which lies in it or elsewhere."""
    for top in (BUILD, SOURCES):
        inside = os.path.relpath(path, top)
        if not inside.startswith(".."):
            return inside.split(os.sep)[0]
    return None


def name_of(entry):
    """File and, for what is compiled once per lane, the lane: "maxmin.cc on avx2"."""
    lane = lane_of(entry)
    return os.path.basename(entry["file"]) + (f" on {lane}" if lane else "")


def lane_of(entry):
    found = re.search(r"-DCGX_LANE=(\w+)", entry["command"])
    return found.group(1) if found else None


class CompileFlags(unittest.TestCase):
    def test_all_files_keep_ieee_order(self):
        self.assertTrue(commands())
        for name, entry in commands().items():
            with self.subTest(name):
                self.assertIn("-ffp-contract=off", entry["command"])
                self.assertNotRegex(entry["command"], FORBIDDEN)

    def test_each_lane_has_exactly_its_instruction_set(self):
        for name, entry in commands().items():
            with self.subTest(name):
                machine = {word for word in entry["command"].split() if word.startswith("-m")}
                self.assertEqual(machine, LANES.get(lane_of(entry), set()))

    def test_release_kernels_are_optimised(self):
        for name, entry in commands().items():
            if "-DNDEBUG" in entry["command"].split():
                self.assertEqual([w for w in entry["command"].split() if w.startswith("-O")][-1], "-O3", name)

    @unittest.skipIf(shutil.which("nm") is None, "needs nm")
    def test_lanes_share_no_function_the_linker_could_swap(self):
        """A weak symbol compiled for AVX-512 might be the one that the scalar lane is linked to."""
        for name, entry in commands().items():
            if lane_of(entry) not in LANES:
                continue
            words = entry["command"].split()
            built = os.path.join(entry["directory"], words[words.index("-o") + 1])
            if not os.path.exists(built):
                self.skipTest("the lanes are not built here")
            listing = subprocess.run(["nm", "-C", "--defined-only", built], capture_output=True, text=True, check=True)
            weak = [line for line in listing.stdout.splitlines() if re.search(r" [WVuw] ", line)]
            self.assertEqual(weak, [], name)


if __name__ == "__main__":
    unittest.main()

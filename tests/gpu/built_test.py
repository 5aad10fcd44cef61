"""Whether built.py (tests/gpu/run --built) runs every test of this folder on a GPU, or says why it does not."""

import os
import re
import unittest

import built

HERE = os.path.dirname(os.path.abspath(__file__))
UNITTEST = """test_a (worker_test.Bits) ... ok
test_b (worker_test.Bits)
What it is about ... skipped "skipped: asks the stand-in for what a GPU doesn't do"
"""
GOOGLE = """[ RUN      ] Driver.One
[       OK ] Driver.One (0 ms)
[ RUN      ] Driver.Two
tests/gpu/driver_case.cc:64: Skipped
skipped: no words

[  SKIPPED ] Driver.Two (0 ms)
[  PASSED  ] 1 test.
"""


class EveryPart(unittest.TestCase):
    def test_no_test_of_this_folder_is_forgotten(self):
        with open(os.path.join(HERE, "CMakeLists.txt"), encoding="utf-8") as file:
            text = file.read()
        scripts = {name[:-3] for name in re.findall(r"SCRIPT (\w+\.py)", text)} - {"built_test"}
        programs = set(re.findall(r"cgx_test\(NAME (gpu_\w+)|cgx_driver_test\((gpu_\w+)", text))
        programs = {one or other for one, other in programs}
        self.assertGreater(len(scripts), 5)
        self.assertGreater(len(programs), 5)
        run = {*built.SCRIPTS, *built.PROGRAMS, "gpu_driver"}  # the last one by "promises of the driver"
        self.assertEqual((scripts | programs) - run - set(built.NOT_HERE), set())
        self.assertEqual(run & set(built.NOT_HERE), set())

    def test_what_a_part_skips_itself_is_found_with_its_reason(self):
        self.assertEqual(built.not_run(UNITTEST), [("test_b", "asks the stand-in for what a GPU doesn't do")])
        self.assertEqual(built.not_run(GOOGLE), [("Driver.Two", "no words")])
        self.assertEqual(built.not_run("skipped: no torch\n"), [("", "no torch")])
        self.assertEqual(built.not_run("OK\n"), [])


if __name__ == "__main__":
    unittest.main()

"""The quickstart: what it shows while it builds, and the picture it ends with; .ci/run bench runs its job."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
QUICKSTART = os.path.join(ROOT, "deploy", "quickstart")
sys.path.insert(0, os.path.join(ROOT, "deploy", "quickstart_job"))

import plot  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


class Progress(unittest.TestCase):
    def quickstart(self, cmake):
        """In a tree of its own, where `cmake` is this script and the job only says its name."""
        with tempfile.TemporaryDirectory(prefix="cgx-quickstart-") as tree:
            os.makedirs(os.path.join(tree, "deploy", "quickstart_job"))
            os.makedirs(os.path.join(tree, "bin"))
            with open(QUICKSTART, encoding="utf-8") as file:
                script = file.read()
            for name, text in (("deploy/quickstart", script), ("deploy/install_packages", "#!/bin/sh\n"), ("bin/cmake", cmake),
                               ("deploy/quickstart_job/run.py", "print('the job runs')\n")):
                path = os.path.join(tree, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                os.chmod(path, 0o755)
            return subprocess.run([os.path.join(tree, "deploy", "quickstart")], capture_output=True, text=True, timeout=60,
                                  stdin=subprocess.DEVNULL, env={"PATH": os.path.join(tree, "bin") + ":/usr/bin:/bin"})

    def test_each_tenth_of_the_build_is_told(self):
        done = self.quickstart("#!/bin/sh\n[ \"$1\" = --build ] || exit 0\n"
                               "for step in $(seq 33); do echo \"[$step/33] Building x[7/2].cc\"; done\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(re.findall(r"^ +(\d+) %$", done.stdout, re.MULTILINE), [str(10 * tenth) for tenth in range(1, 11)])
        self.assertIn("minutes", done.stdout.splitlines()[0])
        self.assertEqual(done.stdout.splitlines()[-1], "the job runs")

    def test_a_build_that_fails_ends_it_with_the_logs_end(self):
        for cmake in ("#!/bin/sh\n[ \"$1\" = --build ] || exit 0\necho '[1/2] Building'\necho 'x.cc: error: no'\nexit 1\n",
                      "#!/bin/sh\necho 'no such preset'\nexit 1\n"):
            done = self.quickstart(cmake)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stdout, "error: no|no such preset")
            self.assertNotIn("the job runs", done.stdout)


class Packages(unittest.TestCase):
    def test_without_root_the_whole_command_is_told(self):
        with tempfile.TemporaryDirectory(prefix="cgx-packages-") as tools:
            for name, text in (("id", "echo 1000"), ("dpkg-query", "exit 1")):
                with open(os.path.join(tools, name), "w", encoding="utf-8") as file:
                    file.write(f"#!/bin/sh\n{text}\n")
                os.chmod(os.path.join(tools, name), 0o755)
            done = subprocess.run([os.path.join(ROOT, "deploy", "install_packages"), "package"], capture_output=True, text=True,
                                  timeout=60, env={"PATH": tools + ":/usr/bin:/bin"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("  sudo apt-get update && sudo apt-get install --no-install-recommends dpkg-dev file python3-venv\n",
                      done.stderr)

    def test_every_program_that_the_readme_then_runs_is_built(self):
        with open(QUICKSTART, encoding="utf-8") as file:
            built = re.search(r"--target ([\w ]+)", file.read())[1].split()
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
            used = set(re.findall(r"^(cgx\w+) ", file.read(), re.MULTILINE))
        self.assertLessEqual({"cgxd", "cgxctl", "cgxsim"}, used)
        self.assertLessEqual(used, set(built))


class Picture(unittest.TestCase):
    RUNS = {"gloo": [{"step_ms": 700, "loss": 4 - i / 50} for i in range(100)],
            "cgxd <4 bits>": [{"step_ms": 350, "loss": 4 - i / 50} for i in range(100)]}

    def drawn(self):
        return ElementTree.fromstring(plot.picture({name: plot.points_of(steps) for name, steps in self.RUNS.items()}, "Loss"))

    def test_each_run_is_a_line_as_long_as_it_took(self):
        lines = [path.get("d") for path in self.drawn().iter(SVG + "path") if path.get("class") == "run"]
        ends = [float(line.split(" L")[-1].split(",")[0]) - plot.LEFT for line in lines]
        self.assertEqual([line.count("L") for line in lines], [99, 99])
        self.assertAlmostEqual(ends[0] / ends[1], 2, places=2)
        heights = [float(point.split(",")[1]) for point in lines[0][1:].split(" L")]
        self.assertEqual(heights, sorted(heights), "the loss falls")

    def test_names_and_round_numbers_stand_beside_it(self):
        said = [text.text for text in self.drawn().iter(SVG + "text")]
        self.assertLessEqual({"gloo", "cgxd <4 bits>", "Loss", "seconds of training", "20", "60", "3"}, set(said))

    def test_ticks_are_round_and_within(self):
        self.assertEqual(plot.ticks(0, 70), [0, 20, 40, 60])
        self.assertEqual(plot.ticks(2.02, 4), [2.5, 3, 3.5, 4])
        self.assertEqual(plot.ticks(0, 0.03), [0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03])


if __name__ == "__main__":
    unittest.main()

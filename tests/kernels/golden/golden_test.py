"""The golden vectors are what generate.py makes of ARITHMETIC.md: the files and the formulas agree."""

import glob
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
try:
    import generate
except ImportError as missing:
    generate, why = None, str(missing)

BYTES_MAX = 60 << 10


@unittest.skipIf(generate is None, "needs numpy")
class Golden(unittest.TestCase):
    def test_files_follow_from_the_formulas(self):
        expected = dict(generate.files())
        self.assertEqual({os.path.basename(path) for path in glob.glob(os.path.join(HERE, "*.txt"))}, set(expected))
        for name, text in expected.items():
            with self.subTest(name), open(os.path.join(HERE, name), encoding="ascii") as file:
                self.assertEqual(file.read().splitlines(), text.splitlines())

    def test_files_are_small(self):
        sizes = {name: os.path.getsize(os.path.join(HERE, name)) for name in os.listdir(HERE) if name.endswith(".txt")}
        self.assertEqual({name: size for name, size in sizes.items() if size > BYTES_MAX}, {})


if __name__ == "__main__":
    unittest.main()

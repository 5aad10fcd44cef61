"""The golden vectors are what generate.py makes of ARITHMETIC.md: the file and the formulas agree."""

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
try:
    import generate
except ImportError as missing:
    generate, why = None, str(missing)


@unittest.skipIf(generate is None, "needs numpy")
class Golden(unittest.TestCase):
    def test_file_follows_from_the_formulas(self):
        with open(os.path.join(HERE, "maxmin.txt"), encoding="ascii") as file:
            self.assertEqual(file.read().splitlines(), generate.text().splitlines())


if __name__ == "__main__":
    unittest.main()

"""A little of nemesis.py: random faults beside a checked job. Longer: by hand, or CGX_NEMESIS_SECONDS."""

import os
import unittest

import nemesis
from machines import isolation_possible

SECONDS = float(os.environ.get("CGX_NEMESIS_SECONDS", "20"))
SEED = int(os.environ.get("CGX_NEMESIS_SEED", "1"))


class RandomFaults(unittest.TestCase):
    @unittest.skipUnless(isolation_possible(), "machines with links of their own need root")
    def test_are_told_as_they_should_and_hurt_nobody_else(self):
        options = nemesis.parse(["--seconds", str(SECONDS), "--seed", str(SEED)])
        self.assertEqual(nemesis.main(options), 0, "the line that begins with VIOLATION says what happened")


if __name__ == "__main__":
    unittest.main()

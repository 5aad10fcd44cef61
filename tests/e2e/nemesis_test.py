"""A little of nemesis.py and of trials.py, beside a checked job. Longer: by hand, or CGX_NEMESIS_SECONDS."""

import os
import unittest

import nemesis
import trials
from machines import isolation_possible

SECONDS = float(os.environ.get("CGX_NEMESIS_SECONDS", "20"))
SEED = int(os.environ.get("CGX_NEMESIS_SEED", "1"))


@unittest.skipUnless(isolation_possible(), "machines with links of their own need root")
class RandomFaults(unittest.TestCase):
    def test_are_told_as_they_should_and_hurt_nobody_else(self):
        options = nemesis.parse(["--seconds", str(SECONDS), "--seed", str(SEED)])
        self.assertEqual(nemesis.main(options), 0, "the line that begins with VIOLATION says what happened")


@unittest.skipUnless(isolation_possible(), "machines with links of their own need root")
class Trials(unittest.TestCase):
    def test_replayed_connections_and_flipped_bits_end_no_other_job_and_keep_nobody_out(self):
        options = trials.parse(["replay", "flip", "--count", "40"])
        self.assertEqual(nemesis.main(options, trials.Trials), 0, "the lines with VIOLATION say what happened")


if __name__ == "__main__":
    unittest.main()

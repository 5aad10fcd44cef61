"""A little of stress.py: random programs on real daemons, with killed ranks. Longer, and with more deeds: by hand."""

import os
import unittest

import stress

SECONDS = float(os.environ.get("CGX_STRESS_SECONDS", "20"))
SEED = int(os.environ.get("CGX_STRESS_SEED", "1"))


class RandomPrograms(unittest.TestCase):
    def test_get_the_right_bits_or_the_error_that_follows_from_the_deed(self):
        options = stress.parse(["--seconds", str(SECONDS), "--seed", str(SEED), "--machines", "3"])
        self.assertEqual(stress.main(options), 0, "the lines that begin with FAILED say what happened")

    def test_mean_the_same_to_every_process(self):
        plans = [stress.Plan(seed, 3, ["kill", "leave", "recommit"]) for seed in (5, 5)]
        self.assertEqual(plans[0].text(), plans[1].text())
        for ours, theirs in zip(plans[0].comms, plans[1].comms, strict=True):
            self.assertEqual((ours.tensors, ours.rounds), (theirs.tensors, theirs.rounds))


if __name__ == "__main__":
    unittest.main()

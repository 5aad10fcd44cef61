"""The DDP hook over a real cgxd: each test is a scenario of torch_ranks.py on processes of its own."""

import os
import subprocess
import sys
import tempfile
import unittest

from private_daemon import PrivateDaemon

RANKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_ranks.py")
SECONDS = 120


class Hook(unittest.TestCase):
    def setUp(self):
        self.daemon = PrivateDaemon()
        self.addCleanup(self.daemon.stop)

    def run_ranks(self, scenario, size=2, killed=()):
        environment = dict(os.environ, CGX_SOCKET=self.daemon.socket, OMP_NUM_THREADS="1",
                           CGX_TEST_DAEMON_PID=str(self.daemon.process.pid))
        with tempfile.TemporaryDirectory() as directory:
            ranks = [subprocess.Popen([sys.executable, RANKS, scenario, str(rank), str(size), directory],
                                      env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                     for rank in range(size)]
            try:
                outputs = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
        for number, (rank, output) in enumerate(zip(ranks, outputs)):
            if number not in killed:
                self.assertEqual(rank.returncode, 0, f"rank {number} of {scenario}:\n{output}\n{self.daemon.log()}")

    def test_gradients_match_gloo_to_the_bit(self):
        self.run_ranks("matches_gloo")

    def test_gradients_match_gloo_with_bucket_views(self):
        self.run_ranks("matches_gloo_with_bucket_views")

    def test_unused_parameters_behave_as_with_gloo(self):
        self.run_ranks("unused_parameters")

    def test_several_models_train_side_by_side(self):
        self.run_ranks("several_models")

    def test_no_sync_accumulates_locally(self):
        self.run_ranks("no_sync_accumulates")

    def test_gradient_units_are_said_before_every_pass(self):
        self.run_ranks("gradient_unit")

    def test_channels_last_weights_keep_their_layout(self):
        self.run_ranks("channels_last")

    def test_process_groups_have_communicators_of_their_own(self):
        self.run_ranks("subgroup", size=3)

    def test_one_rank_alone(self):
        self.run_ranks("matches_gloo", size=1)

    def test_half_types_are_averaged(self):
        self.run_ranks("half_types")

    def test_mixed_types_travel_in_one_pass(self):
        self.run_ranks("mixed_types_in_several_buckets")

    def test_abandoned_pass_fails_everywhere_and_the_next_works(self):
        self.run_ranks("abandoned_pass_fails_everywhere_and_the_next_works")

    def test_dropped_steps_go_on(self):
        self.run_ranks("dropped_step")

    def test_state_survives_pickling(self):
        self.run_ranks("state_survives_pickling")

    def test_models_that_differ_are_a_named_mismatch(self):
        self.run_ranks("disagreement_is_named")

    def test_backward_raises_when_the_daemon_dies(self):
        self.run_ranks("backward_raises_when_the_daemon_dies")

    def test_backward_raises_when_a_rank_dies(self):
        self.run_ranks("backward_raises_when_a_rank_dies", killed=[1])


if __name__ == "__main__":
    unittest.main()

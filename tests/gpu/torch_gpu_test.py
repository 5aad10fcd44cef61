"""The DDP hook for gradients on a CUDA GPU: scenarios of torch_ranks.py, there. Needs a GPU and CGX_TEST_GPU=1 (tests/gpu/run)."""

import importlib.util
import os
import subprocess
import sys
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "e2e"), os.path.join(os.path.dirname(HERE), "client")]

from gpu_driver import ON_A_GPU  # noqa: E402

SCENARIOS = ("matches_gloo", "matches_gloo_with_bucket_views", "unused_parameters", "several_models", "no_sync_accumulates", "half_types",
             "mixed_types_in_several_buckets", "abandoned_pass_fails_everywhere_and_the_next_works", "dropped_step",
             "daemon_started_anew", "backward_raises_when_the_daemon_dies", "fp16_wrapper", "bf16_wrapper", "uneven_inputs",
             "pass_that_fails_in_the_middle_is_redone", "bucket_type_differs_from_its_parameters",
             "results_that_are_not_finite_drop_the_step", "shutdown_and_again")

ASK = "import sys, torch; sys.exit(not torch.cuda.is_available())"  # elsewhere: ranks are forks of this process

if ON_A_GPU and importlib.util.find_spec("torch") and subprocess.run([sys.executable, "-c", ASK]).returncode == 0:
    import torch_test

    class OnAGpu(unittest.TestCase):
        setUp, run_ranks = torch_test.Hook.setUp, torch_test.Hook.run_ranks

        def run_there(self, scenario, **options):
            with unittest.mock.patch.dict(os.environ, CGX_TEST_DEVICE="cuda"):
                self.run_ranks(scenario, **options)

        def test_backward_raises_when_a_rank_dies(self):
            self.run_there("backward_raises_when_a_rank_dies", killed=[1])

        def test_gradients_of_two_machines_match_gloo_to_the_bit(self):
            raw = ["--set", "policy.codec=fp32"]
            daemons = [torch_test.PrivateDaemon(arguments=raw) for _ in range(2)]
            for daemon in daemons:
                self.addCleanup(daemon.stop)
            self.run_there("matches_gloo", daemons=daemons)

    for _scenario in SCENARIOS:
        setattr(OnAGpu, f"test_{_scenario}", lambda self, scenario=_scenario: self.run_there(scenario))
else:
    class OnAGpu(unittest.TestCase):
        def test_nothing(self):
            raise unittest.SkipTest("skipped: no GPU (CGX_TEST_GPU=1 says that there is one), or no torch that finds it")


if __name__ == "__main__":
    unittest.main()

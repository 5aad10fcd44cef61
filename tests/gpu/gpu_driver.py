"""Which driver tests run on: the stand-in, or with CGX_TEST_GPU=1 the machine's own, on its GPU (tests/gpu/run)."""

import os
import unittest

from daemons import BUILD

ON_A_GPU = bool(os.environ.get("CGX_TEST_GPU"))
STANDIN = os.path.join(BUILD, "lib", "standin")
of_the_standin = unittest.skipIf(ON_A_GPU, "skipped: asks the stand-in for what a GPU does not do on demand")


def driver_environment(words):
    """Where a process finds the driver, and what the stand-in is told to do."""
    return {} if ON_A_GPU else {"LD_LIBRARY_PATH": STANDIN, "CGX_STANDIN": words}

"""PyTorch's own DDP tests with the cgx hook in every model that has none. Needs torch 2.x with its test modules.

What does not pass with gloo alone needs more than a CPU and is skipped; what does must pass with the hook.
"""

import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "client"))
from private_daemon import PrivateDaemon  # noqa: E402

import cpu  # noqa: E402

_OURS = re.compile(r"ddp|DistributedDataParallel|static_graph", re.IGNORECASE)
GOOD_MIN = 50
_WITHOUT_A_HOOK = {"test_ddp_comm_hook_logging": "asserts that there is no hook"}


def _hook(model):
    import cgx.torch  # in the rank: its threads do not survive a fork
    cgx.torch.register(model)


def _outcome(name, hook):
    """(passed, why not) of one of PyTorch's tests; passed is None if it skips itself."""
    cpu.hook = hook
    result = unittest.TestResult()
    cpu.Suite(name).run(result)
    if result.skipped:
        return None, result.skipped[0][1]
    bad = result.failures + result.errors + [(None, "unexpected success") for _ in result.unexpectedSuccesses]
    return not bad, "\n".join(text for _, text in bad)


def _names():
    return [name for name in unittest.defaultTestLoader.getTestCaseNames(cpu.Suite) if _OURS.search(name)]


class PyTorch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = PrivateDaemon()
        cls.addClassCleanup(cls.daemon.stop)
        os.environ["CGX_SOCKET"] = cls.daemon.socket
        cls.good, cls.asked = 0, 0

    @classmethod
    def tearDownClass(cls):
        """Another torch may name its tests otherwise or want more than this CPU is made to look like."""
        assert cls.good >= GOOD_MIN or cls.asked < len(_names()), f"only {cls.good} of {cls.asked} tests passed at all"

    def setUp(self):
        type(self).asked += 1

    def play(self, name):
        if name in _WITHOUT_A_HOOK:
            self.skipTest(_WITHOUT_A_HOOK[name])
        passed, why = _outcome(name, _hook)
        if passed:
            type(self).good += 1
            return
        if passed is None:
            self.skipTest(why)
        alone, _ = _outcome(name, None)
        if not alone:
            self.skipTest("does not pass on the CPU with gloo alone")
        self.fail(f"passes with gloo alone, with the hook:\n{why}\n{self.daemon.log()[-2000:]}")


def _add(name):
    setattr(PyTorch, name, lambda self: self.play(name))


for _name in _names():
    _add(_name)

if __name__ == "__main__":
    unittest.main()

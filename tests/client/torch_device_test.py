"""The DDP hook for gradients on an accelerator: scenarios of torch_ranks.py on the one of torch_accelerator.py."""

import contextlib
import os
import threading
import types
import unittest
from unittest import mock

import torch_accelerator
import torch_test
import torch

import cgx._torch_device
import cgx._torch_exchange

SCENARIOS = ("matches_gloo", "mixed_types_in_several_buckets", "abandoned_pass_fails_everywhere_and_the_next_works",
             "dropped_step", "daemon_started_anew", "sparse_gradients", "results_that_are_not_finite_drop_the_step", "uneven_inputs",
             "backward_raises_when_the_daemon_dies", "pass_that_fails_in_the_middle_is_redone",
             "buckets_of_past_passes_are_freed", "daemon_lost_behind_a_pass_that_all_have", "dropped_model_is_forgotten")


class OnAnAccelerator(unittest.TestCase):
    setUp, run_ranks = torch_test.Hook.setUp, torch_test.Hook.run_ranks

    def run_on(self, accelerator, scenario):
        with mock.patch.dict(os.environ, CGX_TEST_ACCELERATOR=accelerator):
            self.run_ranks(scenario)

    def test_a_copy_that_nobody_waits_for_is_found(self):
        with self.assertRaisesRegex(AssertionError, "matches_gloo"):
            self.run_on("EventThatNobodyWaitsFor", "matches_gloo")

    def test_a_copy_that_fails_leaves_its_step_open(self):
        self.run_on("EventThatMayFail", "pass_whose_copy_fails_is_redone")


class Unknown(unittest.TestCase):
    """Kinds of devices whose module is not there: xla's is torch_xla."""

    def test_gradients_there_are_refused_by_name(self):
        with self.assertRaisesRegex(cgx.errors.UnsupportedGradientError, "gradients on xla.*torch.xla, which torch .* does not have"):
            cgx._torch_device.check_device(torch.device("xla"))
        cgx._torch_device.check_device(torch.device("cpu"))

    def test_a_bucket_there_can_be_told_of(self):
        self.assertIsNone(cgx._torch_device.accelerator_of(torch.device("xla")))


class InOrder(unittest.TestCase):
    def test_a_result_is_scaled_on_the_stream_that_copies_it(self):
        module, log = torch_accelerator.Module(), []

        @contextlib.contextmanager
        def stream(one):
            log.append(one)
            yield
            log.append("current")

        module.stream = stream
        result = types.SimpleNamespace(mul_=lambda factor: log.append(f"times {factor}"))
        with mock.patch.object(cgx._torch_device, "_module_of", lambda _: module), \
             mock.patch.object(cgx._torch_device, "_copy", lambda on, *_: log.append(("copy", on))), \
             mock.patch.object(cgx._torch_device, "all_finite", lambda _: log.append("looked") or torch.tensor(True)):
            accelerator = cgx._torch_device.Accelerator(torch.device("cpu"))
            result.numel = lambda: 1
            part = types.SimpleNamespace(factor=2.0, is_shared=True, matters=True, accelerator=accelerator, result=result, _target=None,
                                         times=types.SimpleNamespace(), _settle=lambda _: log.append("set"))
            cgx._torch_exchange.Part._deliver(part)
        side = accelerator._side
        self.assertEqual(log, [side, "times 2.0", ("copy", side), "looked", "set", "current"])

    def test_a_result_is_found_finite_although_other_streams_are_late(self):
        module = torch_accelerator.Module()
        open_ = threading.Event()
        module.current_stream(None).push(open_.wait)
        with mock.patch.object(cgx._torch_device, "_module_of", lambda _: module), \
             mock.patch.object(cgx._torch_device, "_copy", lambda *_: None):
            accelerator = cgx._torch_device.Accelerator(torch.device("cpu"))
            for value, finite in ((1.0, True), (float("inf"), False), (float("nan"), False)):
                for dtype in (torch.float32, torch.float16):
                    looks, stage = [], torch.full((100,), value, dtype=dtype)
                    accelerator.deliver(torch.empty_like(stage), stage, 1.0, looks.append, True)
                    self.assertEqual(looks[0](), finite)
        open_.set()


class Regions(unittest.TestCase):
    def test_buckets_begin_at_whole_lines(self):
        session = types.SimpleNamespace(handle=None)
        memory = types.SimpleNamespace(block=lambda *_: None, tensor=lambda *_: torch.empty(4096))
        region = cgx._torch_exchange._Region(session, torch.float32, 3 + 1024 + 1 + 3 * 15, memory)
        firsts = [region.take(elements) for elements in (3, 1024, 1)]
        self.assertEqual([first * region.width % 64 for first in firsts], [0, 0, 0])
        self.assertEqual(len(set(firsts)), 3)
        with self.assertRaisesRegex(ValueError, "more gradients of torch.float32 than the first"):
            region.take(32)


class Room(unittest.TestCase):
    def test_torch_gives_back_what_it_keeps_before_the_arena_is_made(self):
        log = []
        module = torch_accelerator.Module()
        module.empty_cache = lambda: log.append("emptied")
        module.get_device_properties = lambda device: types.SimpleNamespace(uuid="bf4c3d0e-8a6c-4f5c-9a53-6f1c5e0c9a11")
        module.device = contextlib.nullcontext
        session = types.SimpleNamespace(share=lambda number: log.append("shared") or (True, True))
        with mock.patch.object(cgx._torch_device, "_module_of", lambda _: module), mock.patch.object(torch.version, "cuda", "12.0"):
            self.assertTrue(cgx._torch_device.Accelerator(torch.device("cuda")).share(session))
        self.assertEqual(log, ["emptied", "shared"])


class Closing(unittest.TestCase):
    """While the stream holds copies to the arena on the device."""

    def setUp(self):
        module, self.gate, self.copied = torch_accelerator.Module(), threading.Event(), threading.Event()
        with mock.patch.object(cgx._torch_device, "_module_of", lambda _: module):
            self.accelerator = cgx._torch_device.Accelerator(torch.device("cpu"))
        self.accelerator._side.push(lambda: self.gate.wait(20) and self.copied.set())
        nothing = types.SimpleNamespace(close=lambda: None, stop=lambda: True)
        self.exchange = types.SimpleNamespace(communicator=nothing, _later=nothing, _shared=nothing, _regions="memory",
                                              _accelerator=self.accelerator)

    def test_memory_is_kept_until_they_are_made(self):
        threading.Timer(0.2, self.gate.set).start()
        cgx._torch_exchange.Exchange.close(self.exchange)
        self.assertTrue(self.copied.is_set())

    def test_memory_of_a_stream_that_gets_stuck_is_kept_for_good(self):
        with mock.patch.multiple(cgx._torch_device, _COPIES_S=0.1, _kept=[]):
            cgx._torch_exchange.Exchange.close(self.exchange)
            self.assertEqual(cgx._torch_device._kept, ["memory"])
        self.gate.set()

    def test_a_copy_to_the_host_that_gets_stuck_ends_no_close_and_its_memory_is_kept(self):
        later = self.exchange._later = cgx._torch_device.Later()
        self.exchange._shared, handed_over = None, threading.Event()
        later.put(lambda: self.gate.wait(20), handed_over.set, self.fail)
        with mock.patch.multiple(cgx._torch_device, _COPIES_S=0.1, _kept=[]):
            cgx._torch_exchange.Exchange.close(self.exchange)
            self.assertEqual(cgx._torch_device._kept, ["memory"])
            self.assertFalse(handed_over.is_set())
            self.gate.set()
            handed_over.wait(20)
            cgx._torch_exchange.Exchange.close(self.exchange)
            self.assertEqual(cgx._torch_device._kept, ["memory"], "nothing is stuck any more")

    def test_the_thread_that_waits_for_copies_may_be_the_one_that_closes(self):
        later = self.exchange._later = cgx._torch_device.Later()
        self.exchange._shared, closed = None, []
        with mock.patch.multiple(cgx._torch_device, _kept=[]):
            later.put(lambda: None, lambda: closed.append(cgx._torch_exchange.Exchange.close(self.exchange)), closed.append)
            later.drain()
            self.assertEqual(closed, [None])
            self.assertEqual(cgx._torch_device._kept, [], "nothing is stuck")
        self.gate.set()

    def test_a_device_that_has_failed_is_not_waited_for(self):
        with mock.patch.object(self.accelerator._side, "query", side_effect=RuntimeError("CUDA error")):
            cgx._torch_exchange.Exchange.close(self.exchange)
        self.assertFalse(self.copied.is_set())
        self.gate.set()


for _scenario in SCENARIOS:
    setattr(OnAnAccelerator, f"test_{_scenario}", lambda self, scenario=_scenario: self.run_on("Event", scenario))
    setattr(OnAnAccelerator, f"test_{_scenario}_with_the_arena_there",
            lambda self, scenario=_scenario: self.run_on("ArenaThere", scenario))


if __name__ == "__main__":
    unittest.main()

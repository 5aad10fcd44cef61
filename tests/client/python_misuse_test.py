"""Arguments that the Python package refuses, by name and before ctypes would make something else of them."""

import unittest
import uuid

from daemon_case import WithDaemon

import cgx  # noqa: F401
from cgx.session import device_id


class Misuse(WithDaemon):
    def test_a_wrong_session_is_named(self):
        for given, error, text in (({"spin_us": -1}, ValueError, "spin_us -1 must be 0 to 1000000"),
                                   ({"spin_us": 99999999}, ValueError, "spin_us 99999999 must be 0 to 1000000"),
                                   ({"spin_us": 0.5}, TypeError, "spin_us 0.5 must be a whole number, not float"),
                                   ({"arena_bytes": -1}, ValueError, "arena_bytes -1 must be 0 to")):
            with self.assertRaisesRegex(error, text):
                self.session(**given)

    def test_a_wrong_device_is_named(self):
        session = self.session()
        for device, error, text in (("GPU-1", ValueError, "device 'GPU-1' must be the UUID of a GPU; nvidia-smi"),
                                    (0, TypeError, "device 0 must be the UUID of a GPU")):
            with self.assertRaisesRegex(error, text):
                session.communicator("alone", device=device)
            with self.assertRaisesRegex(error, text):
                session.empty(4, device=device)
        made = uuid.uuid4()
        for device in (made, str(made), f"GPU-{made}", f"MIG-{made}"):
            self.assertEqual(device_id(device), made.bytes)

    def test_a_wrong_step_or_tensor_is_named(self):
        comm = self.session().communicator("alone")
        tensor = comm.register("t", comm.session.empty(4))
        comm.commit()
        for call in (lambda: comm.submit(-1, [tensor]), lambda: comm.absent(-1, [tensor]), lambda: comm.step_end(-1),
                     lambda: comm.wait(-1)):
            with self.assertRaisesRegex(ValueError, "step -1 must not be negative"):
                call()
        for call in (lambda: comm.submit(0, ["t"]), lambda: comm.absent(0, ["t"]), lambda: comm.states(0, ["t"])):
            with self.assertRaisesRegex(TypeError, r"'t' is no tensor; register\(\) gives them"):
                call()


if __name__ == "__main__":
    unittest.main()

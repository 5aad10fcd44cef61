"""The Python package without a daemon: what help() shows, what it is made of, its exceptions."""

import ctypes
import inspect
import os
import pydoc
import subprocess
import sys
import unittest

import private_daemon  # noqa: F401  says where libcgx is

import cgx
from cgx._arrays import _DLTensor, view_of


class Package(unittest.TestCase):
    def test_every_public_method_says_what_it_does_and_takes(self):
        for kind in (cgx.Session, cgx.Communicator, cgx.Call):
            for name, member in vars(kind).items():
                if name.startswith("_") or not inspect.isfunction(member):
                    continue
                with self.subTest(f"{kind.__name__}.{name}"):
                    self.assertTrue(member.__doc__)
                    untyped = [parameter.name for parameter in inspect.signature(member).parameters.values()
                               if parameter.annotation is parameter.empty]
                    self.assertLessEqual(set(untyped), {"self", "array", "out", "dtype"})
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(cgx.__file__), "py.typed")))

    def test_help_is_about_what_users_call(self):
        text = pydoc.plain(pydoc.render_doc(cgx))
        self.assertLess(len(text.splitlines()), 1000)
        for word in ("class Session", "allreduce(", "class Report", "cgx.errors"):
            self.assertIn(word, text)

    def test_without_torch_the_hook_says_what_to_install(self):
        script = "import sys; sys.modules['torch'] = None; import cgx; import cgx.torch"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        self.assertIn("ImportError: cgx.torch needs PyTorch, 1.13 or 2.x: install python3-torch", done.stderr)


class OnAGpu:
    """An array that speaks the old DLPack; what reads it on the host would copy it there."""

    def __init__(self):
        self._shape = (ctypes.c_int64 * 1)(4)
        self._tensor = _DLTensor(data=4096, device_type=2, ndim=1, code=2, bits=32, lanes=1, shape=self._shape)

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self._tensor), b"dltensor", None)

    def __array__(self, *_):
        raise SystemExit("copied to the host")


class ArraysOnAGpu(unittest.TestCase):
    def test_they_are_not_copied_to_the_host_to_learn_that_they_are_immutable(self):
        jax = type("ArrayImpl", (OnAGpu,), {"__module__": "jaxlib._jax"})
        for kind, writable in ((OnAGpu, True), (jax, False)):
            view = view_of(kind())
            self.assertEqual((view.address, view.shape, view.element, view.writable), (4096, (4,), "float32", writable))


class Errors(unittest.TestCase):
    def test_every_status_has_a_class_of_its_own(self):
        names = {kind.status for kind in cgx.errors.BY_CODE.values()}
        self.assertIn("STEP_OPEN", names)
        self.assertIn("CORRUPT", names)
        self.assertEqual(cgx.StepOpenError.status, "STEP_OPEN")
        self.assertTrue(all(issubclass(kind, cgx.CgxError) for kind in cgx.errors.BY_CODE.values()))

    def test_expected_python_exceptions_catch_them(self):
        with self.assertRaises(ConnectionError) as caught:
            cgx.Session(socket="/nonexistent/cgxd.sock")
        self.assertIsInstance(caught.exception, cgx.UnavailableError)
        self.assertIn("/nonexistent/cgxd.sock", str(caught.exception))
        self.assertTrue(issubclass(cgx.TimedOutError, TimeoutError))
        self.assertTrue(issubclass(cgx.InvalidArgumentError, ValueError))


if __name__ == "__main__":
    unittest.main()

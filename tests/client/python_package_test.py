"""The Python package without a daemon: what help() shows, what it is made of, its exceptions."""

import inspect
import os
import pydoc
import subprocess
import sys
import unittest

import private_daemon  # noqa: F401  says where libcgx is

import cgx


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

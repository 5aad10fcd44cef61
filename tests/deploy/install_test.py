"""`cmake --install` into a prefix of its own: what is there, and programs of a user who has only that."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from commands_test import INTO_A_FOLDER, commands_that

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ.get("CGX_BUILD_DIR", os.path.join(ROOT, "build", "release"))
PROGRAM = os.path.join(ROOT, "tests", "client", "c_test.c")  # includes <cgx/cgx.h> only
PROJECT = """cmake_minimum_required(VERSION 3.16)
project(user LANGUAGES C)
find_package(cgx 0.1 REQUIRED)
add_executable(program program.c)
target_link_libraries(program PRIVATE cgx::cgx)
"""


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, **options)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Installed(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.work = tempfile.mkdtemp(prefix="cgx-install-")
        cls.addClassCleanup(shutil.rmtree, cls.work)
        cls.prefix = os.path.join(cls.work, "prefix")
        shown = [line for line in commands_that(INTO_A_FOLDER) if line.startswith("cmake --install")]
        assert len(shown) == 1, shown
        run(*shown[0].replace("build/release", BUILD).replace("/opt/cgx", cls.prefix).split())

    def path(self, *names):
        return os.path.join(self.prefix, *names)

    def text(self, *names):
        with open(self.path(*names), encoding="utf-8") as file:
            return file.read()

    def trainer_environment(self, **more):
        """Of a user without any of our variables; the daemon's socket lies in this test's folder."""
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("CGX", "PYTHONPATH", "LD_LIBRARY_PATH"))}
        socket = os.path.join(self.work, self._testMethodName[-20:] + ".sock")
        return {**kept, "CGX_AUTOSTART": "1", "CGX_SOCKET": socket, **more}

    def test_only_public_headers_are_installed(self):
        found = sorted(os.listdir(self.path("include"))), sorted(os.listdir(self.path("include", "cgx")))
        self.assertEqual(found, (["cgx"], ["cgx.h", "collectives.def", "dtypes.def", "status_codes.def"]))
        self.assertFalse(any(os.path.islink(self.path("include", "cgx", name)) for name in found[1]))

    def test_binaries_name_no_folder_to_search(self):
        for name in ("bin/cgxd", "bin/cgxd-gpu", "bin/cgxctl", "bin/cgxsim", "lib/libcgx.so"):
            dynamic = run("readelf", "-dW", self.path(name))
            self.assertIsNone(re.search(r"R(UN)?PATH", dynamic), dynamic)
        self.assertIn("soname: [libcgx.so.0]", run("readelf", "-dW", self.path("lib", "libcgx.so")))
        self.assertTrue(os.path.islink(self.path("lib", "libcgx.so.0")))

    def test_no_text_names_the_build_or_the_source(self):
        for folder, _, names in os.walk(self.prefix):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    data = file.read()
                if not data.startswith(b"\x7fELF"):
                    self.assertNotIn(ROOT.encode(), data, os.path.join(folder, name))

    def test_version_tells_revision_and_formats(self):
        version = r"0\.\d+\.\d+( \(revision [0-9a-f]+(-modified)?\))?"
        formats = r"frame \d+, mesh \d+, session \d+, shared memory \d+, control cgx\.v\d+"
        self.assertRegex(run(self.path("bin", "cgxd"), "--version"), rf"^cgxd {version}\nspeaks {formats}\n$")
        self.assertRegex(run(self.path("bin", "cgxctl"), "--version"),
                         rf"^cgxctl {version}\nspeaks control cgx\.v\d+\n$")
        self.assertRegex(run(self.path("bin", "cgxsim"), "--version"), rf"^cgxsim {version}\n$")

    def test_the_unit_starts_what_was_installed(self):
        unit = self.text("lib", "systemd", "system", "cgxd.service")
        command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1]
        self.assertEqual(command, f"{self.path('bin', 'cgxd')} --config {self.path('etc', 'cgxd', 'cgxd.yaml')} "
                         "--set run_directory=/run/cgxd")
        run(*command.split(), "--check-config")

    def test_the_drop_ins_that_the_unit_names_are_there(self):
        unit = self.text("lib", "systemd", "system", "cgxd.service")
        folder = re.search(r"(\S+/)rdma\.conf and gpu\.conf", unit)[1]
        self.assertEqual(sorted(os.listdir(folder)), ["gpu.conf", "rdma.conf"])
        self.assertTrue(folder.startswith(self.prefix))

    def test_a_configuration_that_is_there_stays(self):
        file = self.path("etc", "cgxd", "cgxd.yaml")
        with open(file, "a", encoding="utf-8") as out:
            out.write("lane: scalar\n")
        run("cmake", "--install", BUILD, "--prefix", self.prefix, "--component", "daemon")
        self.assertTrue(self.text(file).endswith("lane: scalar\n"))

    def test_a_program_built_with_pkg_config_trains(self):
        environment = self.trainer_environment(PKG_CONFIG_PATH=self.path("lib", "pkgconfig"))
        flags = run("pkg-config", "--cflags", "--libs", "cgx", env=environment).split()
        program = os.path.join(self.work, "by_pkg_config")
        run("cc", "-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", PROGRAM, "-o", program, *flags)
        run(program, env={**environment, "LD_LIBRARY_PATH": self.path("lib")})

    def test_a_program_built_with_find_package_trains_with_a_running_daemon(self):
        source, build = os.path.join(self.work, "user"), os.path.join(self.work, "user", "build")
        os.makedirs(source)
        shutil.copy(PROGRAM, os.path.join(source, "program.c"))
        with open(os.path.join(source, "CMakeLists.txt"), "w", encoding="utf-8") as file:
            file.write(PROJECT)
        run("cmake", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", build)
        # `cgxd run` is a daemon of its own, told by CGX_SOCKET.
        run(self.path("bin", "cgxd"), "run", "--set", f"run_directory={self.work}/run", "--",
            os.path.join(build, "program"), env=self.trainer_environment(CGX_AUTOSTART="0"))

    def test_the_python_package_trains(self):
        packages = self.path("lib", "python3", "dist-packages")
        environment = self.trainer_environment(PYTHONPATH=packages, PYTHONDONTWRITEBYTECODE="1")
        said = run(sys.executable, os.path.join(HERE, "train.py"), env=environment)
        self.assertRegex(said, rf"two ranks agree .* from {re.escape(packages)}/cgx")
        where = run(sys.executable, "-c", "import cgx, importlib.metadata as installed;"
                    "assert installed.version('cgx') == cgx.__version__; print(cgx._library._name)", env=environment)
        self.assertEqual(os.path.realpath(where.strip()), os.path.realpath(self.path("lib", "libcgx.so")))


if __name__ == "__main__":
    unittest.main()

"""NVIDIA's own bindings for Python (cuda-bindings) on the stand-in driver: somebody else's idea of how a driver is used."""

import os
import subprocess
import sys
import tempfile
import unittest

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "cgxd")
LOADED = os.path.join(CACHE, "cuda-bindings")
VENV = os.environ.get("CGX_TORCH_VENV", os.path.join(CACHE, "torch-venv"))  # torch brings the package along
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
STANDIN = os.path.join(os.environ.get("CGX_BUILD_DIR", "build/release"), "lib", "standin")

BEGIN = """
import ctypes, sys
from cuda.bindings import driver as cu
def call(name, *arguments):
    error, *values = getattr(cu, name)(*arguments)
    assert error == cu.CUresult.CUDA_SUCCESS, (name, error)
    return values[0] if len(values) == 1 else values
def say(word): print(word, flush=True)
def hear(): return sys.stdin.readline().strip()
call("cuInit", 0)
context = call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 0))
call("cuCtxSetCurrent", context)
"""
COPIES = BEGIN + """
memory = call("cuMemAlloc", 1000)
host = call("cuMemHostAlloc", 1000, 0)
stream = call("cuStreamCreate", cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
start, end = call("cuEventCreate", 0), call("cuEventCreate", 0)
call("cuEventRecord", start, stream)
call("cuMemsetD8Async", memory, 7, 1000, stream)
call("cuMemcpyDtoHAsync", host, memory, 1000, stream)
call("cuEventRecord", end, stream)
call("cuEventSynchronize", end)
assert call("cuEventElapsedTime", start, end) >= 0
values = bytearray(1000)
call("cuMemcpyDtoH", values, memory, 1000)
assert values == bytes([7]) * 1000, values
call("cuStreamDestroy", stream)
for event in (start, end): call("cuEventDestroy", event)
call("cuMemFreeHost", host)
call("cuMemFree", memory)
say("done")
"""
MAKER = BEGIN + """
memory = call("cuMemAlloc", 4096)
call("cuMemcpyHtoD", memory, b"from the maker", 14)
say(ctypes.string_at(call("cuIpcGetMemHandle", memory).getPtr(), 64).hex())
assert hear() == "answered"
answer = bytearray(15)
call("cuMemcpyDtoH", answer, int(memory) + 100, 15)
call("cuMemFree", memory)
say(answer.decode())
"""
IMPORTER = BEGIN + """
handle = cu.CUipcMemHandle()
ctypes.memmove(handle.getPtr(), bytes.fromhex(hear()), 64)
memory = call("cuIpcOpenMemHandle", handle, 1)
words = bytearray(14)
call("cuMemcpyDtoH", words, memory, 14)
call("cuMemcpyHtoD", int(memory) + 100, b"to the importer"[::-1], 15)
call("cuIpcCloseMemHandle", memory)
say(words.decode())
"""


def importable(folder):
    return os.path.isdir(os.path.join(folder, "cuda", "bindings"))


def bindings_folder():
    """Where the package lies; loads it once. None, and why, where it is not to be had."""
    places = [*sys.path, LOADED, os.path.join(VENV, "lib", VERSION, "site-packages")]
    found = next((place for place in places if importable(place)), None)
    if found:
        return found, None
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--retries", "0", "--target", LOADED, "cuda-bindings"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return None, "cuda-bindings did not load within two minutes"
    why = (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
    return (LOADED, None) if importable(LOADED) else (None, f"cuda-bindings cannot be installed: {why}")


class Bindings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder, why = bindings_folder()
        if why:
            raise unittest.SkipTest(f"skipped: {why}")
        if not os.path.exists(os.path.join(STANDIN, "libcuda.so.1")):
            raise unittest.SkipTest(f"skipped: the stand-in is not built in {STANDIN}")

    def setUp(self):
        self.machine = tempfile.TemporaryDirectory()
        self.addCleanup(self.machine.cleanup)

    def python(self, program):
        environment = {**os.environ, "LD_LIBRARY_PATH": STANDIN, "PYTHONPATH": self.folder,
                       "CGX_STANDIN": f"folder={self.machine.name} seed=5 strict"}
        process = subprocess.Popen([sys.executable, "-c", program], env=environment, text=True, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        return process

    def finish(self, process, words=None):
        said, errors = process.communicate(words, timeout=60)
        self.assertEqual((process.returncode, errors), (0, ""))
        return said.strip()

    def test_copies_streams_and_events_work(self):
        self.assertEqual(self.finish(self.python(COPIES)), "done")

    def test_a_handle_carries_memory_to_another_python(self):
        maker = self.python(MAKER)
        handle = maker.stdout.readline()
        self.assertEqual(self.finish(self.python(IMPORTER), handle), "from the maker")
        self.assertEqual(self.finish(maker, "answered\n"), "retropmi eht ot")


if __name__ == "__main__":
    unittest.main()

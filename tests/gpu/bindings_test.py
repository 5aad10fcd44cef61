"""NVIDIA's own bindings for Python (cuda-bindings) on the stand-in driver: somebody else's idea of how a driver is used."""

import os
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "tests", "e2e"), os.path.join(ROOT, "tests", "client")]

from gpu_driver import ON_A_GPU, STANDIN, driver_environment  # noqa: E402
from private_daemon import BUILD, PrivateDaemon  # noqa: E402

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "cgxd")
LOADED = os.path.join(CACHE, "cuda-bindings")
VENV = os.environ.get("CGX_TORCH_VENV", os.path.join(CACHE, "torch-venv"))  # torch brings the package along
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"

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
call("cuStreamSynchronize", 0)
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
call("cuStreamSynchronize", 0)
call("cuIpcCloseMemHandle", memory)
say(words.decode())
"""

# An array as Numba's and CuPy's are, reduced over two processes: the library copies it on the stream.
RANK = BEGIN + """
import array, cgx
rank = int(hear())
class Array:
    def __init__(self, count):
        self.memory, self.count = call("cuMemAlloc", 4 * count), count
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "<f4", "data": (int(self.memory), False), "version": 3}
stream = call("cuStreamCreate", cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
ours = Array(5001)
call("cuMemcpyHtoD", ours.memory, array.array("f", [rank + 0.5 * i for i in range(ours.count)]), 4 * ours.count)
call("cuStreamSynchronize", 0)
with cgx.Session(job="bindings") as session:
    comm = session.communicator("world", rank, 2, lambda key, value: say(key + " " + value.hex()) or hear(),
                                lambda key: say("? " + key) or bytes.fromhex(hear()) or None, timeout=30)
    comm.allreduce(ours, stream=stream)
result = array.array("f", [0]) * ours.count
call("cuStreamSynchronize", stream)
call("cuMemcpyDtoH", result, ours.memory, 4 * ours.count)
assert list(result) == [1.0 + i for i in range(ours.count)], result[:5]
call("cuStreamDestroy", stream)
call("cuMemFree", ours.memory)
say("reduced")
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
        if not ON_A_GPU and not os.path.exists(os.path.join(STANDIN, "libcuda.so.1")):
            raise unittest.SkipTest(f"skipped: the stand-in is not built in {STANDIN}")

    def setUp(self):
        self.machine = tempfile.TemporaryDirectory()
        self.addCleanup(self.machine.cleanup)

    def python(self, program):
        environment = {**os.environ, "CGX_LIBRARY": os.path.join(BUILD, "lib", "libcgx.so"),
                       "PYTHONPATH": os.pathsep.join((self.folder, os.path.join(ROOT, "client", "python"))),
                       **driver_environment(f"folder={self.machine.name} seed=5 strict")}
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

    def test_arrays_of_two_processes_are_reduced(self):
        daemon = PrivateDaemon()
        self.addCleanup(daemon.stop)
        with unittest.mock.patch.dict(os.environ, CGX_SOCKET=daemon.socket):
            ranks = [self.python(RANK) for _ in range(2)]
        store, lock = {}, threading.Lock()

        def serve(number, process):
            """The store that both meet in, over their pipes."""
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            for line in process.stdout:
                words = line.split()
                if words[0] == "reduced":
                    return
                with lock:
                    answer = store.get(words[1], "") if words[0] == "?" else store.update([words]) or "kept"
                process.stdin.write(f"{answer}\n")
                process.stdin.flush()

        threads = [threading.Thread(target=serve, args=each) for each in enumerate(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for process in ranks:
            self.assertEqual((process.wait(60), process.stderr.read()), (0, ""))

    def test_a_handle_carries_memory_to_another_python(self):
        maker = self.python(MAKER)
        handle = maker.stdout.readline()
        self.assertEqual(self.finish(self.python(IMPORTER), handle), "from the maker")
        self.assertEqual(self.finish(maker, "answered\n"), "retropmi eht ot")


if __name__ == "__main__":
    unittest.main()

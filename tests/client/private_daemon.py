"""A cgxd (or the fake daemon) of one test: started at a socket of its own, gone when the test ends."""

import os
import signal
import subprocess
import tempfile
import time

BUILD = os.environ.get("CGX_BUILD_DIR") or os.path.join(os.path.dirname(__file__), "..", "..", "build", "release")
os.environ.setdefault("CGX_LIBRARY", os.path.join(BUILD, "lib", "libcgx.so"))


class PrivateDaemon:
    def __init__(self, binary="cgxd", arguments=()):
        self._directory = tempfile.TemporaryDirectory(prefix="cgx-test-")
        self.socket = os.path.join(self._directory.name, "cgxd.sock")
        self._log = open(os.path.join(self._directory.name, "log"), "w+", encoding="utf-8")
        command = [os.path.join(BUILD, "bin", binary), "--socket", self.socket, *arguments]
        if binary == "cgxd":
            command += ["--set", f"run_directory={self._directory.name}"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        self._wait_for_socket()

    def _wait_for_socket(self, seconds=20):
        deadline = time.monotonic() + seconds
        while not os.path.exists(self.socket):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the daemon did not come up: {self.log()}")
            time.sleep(0.01)

    def log(self):
        self._log.seek(0)
        return self._log.read()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()
        self._directory.cleanup()

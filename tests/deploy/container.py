"""Builds deploy/container/Containerfile and runs what comes out of it, without a container engine's daemon.

usage: container.py

The base image is a clean Debian 12 root. Needs root, mmdebstrap and buildah; what cannot be had is skipped and said.
The last line is "N passed, N failed, N skipped". Compiler results stay in $XDG_CACHE_HOME/cgxd/container.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path.insert(0, HERE)

from roots import Skipped, make_root  # noqa: E402

BASE = "docker.io/library/debian:bookworm-slim"  # what the file says, as it is called in full
USER = 984
REVISION = "abcdef012345"
BUILD_S, COMMAND_S, START_S = 900, 120, 20
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "cgxd", "container")
CONFINED = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all",
            "--no-new-privs")


class Failed(Exception):
    pass


class Engine:
    """buildah with a store, mounts and processes of its own: they end with it."""

    def __init__(self, folder):
        self._store = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "buildah", "--root", os.path.join(folder, "store"), "--runroot", os.path.join(folder, "run"),
                       "--storage-driver", "vfs"]

    def __call__(self, *words, seconds=COMMAND_S):
        done = subprocess.run([*self._store, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=seconds)
        if done.returncode:
            raise Failed(f"buildah {' '.join(words)}: {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout.strip()


def make_base(engine, folder):
    root = os.path.join(folder, "base")
    make_root("bookworm", root, "ca-certificates")
    made = engine("from", "scratch")
    engine("add", "--quiet", made, root, "/")
    engine("commit", "--quiet", made, BASE, seconds=300)
    engine("rm", made)
    shutil.rmtree(root)


def build(engine):
    os.makedirs(CACHE, exist_ok=True)
    with open(os.path.join(CACHE, "ccache.conf"), "w", encoding="utf-8") as file:
        file.write("compiler_check = content\nmax_size = 1G\n")  # each image has its own compiler file
    began = time.monotonic()
    engine("build", "--isolation", "chroot", "--pull-never", "--volume", f"{CACHE}:/root/.cache/ccache:rw", "--tag", "cgxd",
           "--build-arg", "REVISION=" + REVISION, "--file", os.path.join(ROOT, "deploy", "container", "Containerfile"), ROOT,
           seconds=BUILD_S)
    return f"{time.monotonic() - began:.0f} s"


def look(engine):
    """What an engine that runs it is told."""
    image = json.loads(engine("inspect", "--type", "image", "cgxd"))
    config = image["OCIv1"]["config"]
    for key, wanted in (("User", f"{USER}:{USER}"), ("StopSignal", "SIGTERM")):
        if config.get(key) != wanted:
            raise Failed(f"{key}: {config.get(key)}")
    if config["Entrypoint"][0] != "cgxd":
        raise Failed(f"Entrypoint: {config['Entrypoint']}")
    return config["Entrypoint"]


@contextlib.contextmanager
def daemon(root, command):
    """As an engine starts it: that user, no capabilities, the image and nothing else, which it cannot write to."""
    script = ('mount --rbind "$0" "$0" && mount -o remount,bind,ro "$0" && mount --bind "$1" "$0/run/cgxd" && '
              'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && shift && exec chroot "$0" "$@"')
    with tempfile.TemporaryDirectory(prefix="cgx-run-") as run, tempfile.TemporaryFile("w+") as log:
        os.chown(run, USER, USER)
        os.chmod(run, 0o755)
        process = subprocess.Popen(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, root, run,
                                    *CONFINED, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_S
            while not os.path.exists(os.path.join(run, "cgxd.sock")):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise Failed(f"cgxd does not serve: {log.read()}")
                time.sleep(0.05)
            yield run
            with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="utf-8") as file:
                os.kill(int(file.read()), signal.SIGTERM)  # to the first process of the container, as engines do
            status = process.wait(COMMAND_S)
            log.seek(0)
            text = log.read()
            if status or "drained=yes" not in text:
                raise Failed(f"cgxd ended with {status}: {text}")
        finally:
            process.kill()
            process.wait()


def run(engine):
    """The daemon in the image trains ranks outside it, and cgxctl in the image, its health check, sees it."""
    command = look(engine)
    container = engine("from", "cgxd")
    root = engine("mount", container)  # with vfs a folder, nothing is mounted
    environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "client", "python"),
                   "CGX_LIBRARY": os.path.join(ROOT, "build", "release", "lib", "libcgx.so")}
    with daemon(root, command) as place:
        done = subprocess.run(["/usr/bin/python3", os.path.join(HERE, "train.py")], capture_output=True, text=True,
                              env={**environment, "CGX_SOCKET": os.path.join(place, "cgxd.sock")}, timeout=COMMAND_S)
        if done.returncode:
            raise Failed(done.stdout + done.stderr)
        seen = subprocess.run(["unshare", "--mount", "sh", "-c",
                               'mount --bind "$1" "$0/run/cgxd" && shift && exec chroot "$0" "$@"', root, place, *CONFINED,
                               "cgxctl", "status"], capture_output=True, text=True, timeout=COMMAND_S)
        if seen.returncode or not seen.stdout.startswith("cgxd 0."):
            raise Failed(seen.stdout + seen.stderr)
    version = subprocess.run(["chroot", root, "cgxd", "--version"], capture_output=True, text=True, timeout=COMMAND_S).stdout
    if f"(revision {REVISION})" not in version:
        raise Failed(version)
    return done.stdout.strip()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was made is removed
    passed = failed = skipped = 0
    with tempfile.TemporaryDirectory(prefix="cgx-container-", ignore_cleanup_errors=True) as folder:
        engine = Engine(folder)
        try:
            if os.geteuid() != 0 or not shutil.which("buildah"):
                raise Skipped("needs root and buildah (Debian's package of that name)")
            make_base(engine, folder)
            for name, step in (("the image is built", build), ("its daemon trains ranks outside it", run)):
                try:
                    said = step(engine)
                except (Failed, subprocess.TimeoutExpired) as error:
                    print(f"FAILED container: {name}\n{error}")
                    failed += 1
                    break
                print(f"ok: container: {name}: {said}", flush=True)
                passed += 1
        except Skipped as reason:
            print(f"skipped: container: {reason}")
            skipped = 1
        with contextlib.suppress(Failed):
            engine("umount", "--all")
            engine("rm", "--all")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

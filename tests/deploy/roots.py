"""Installs the packages and the wheel in clean roots and trains with two ranks there: .ci/run packages.

usage: roots.py PACKAGES_FOLDER [SUITE]...     (default: bookworm trixie noble)

Needs root and mmdebstrap; Ubuntu's archive keyring comes from there where this machine has none. A root that cannot be had within a
few minutes is skipped, and the output says why. The last line is "N passed, N failed, N skipped".
"""

import concurrent.futures
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from typing import NamedTuple

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT_SECONDS, STEP_SECONDS = 170, 120
INCLUDED = "apt,python3,python3-numpy,python3-venv"  # apt: mmdebstrap leaves it out where it does not know the sources


class Release(NamedTuple):
    name: str
    mark: str  # in the version of packages built there
    keyring: str
    sources: str = ""  # where mmdebstrap's own do not do


UBUNTU = "http://archive.ubuntu.com/ubuntu"
# Not signed by a key this machine knows: of what is in it, only the key with this fingerprint is trusted.
UBUNTU_KEYRING = f"{UBUNTU}/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb"
UBUNTU_KEY = "F6ECB3762474EDA9D21B7022871920D1991BC93C"  # Ubuntu Archive Automatic Signing Key (2018)
RELEASES = {"bookworm": Release("Debian 12", "debian12", "debian-archive-keyring.gpg"),
            "trixie": Release("Debian 13", "debian13", "debian-archive-keyring.gpg"),
            "noble": Release("Ubuntu 24.04", "ubuntu24.04", "ubuntu-archive-keyring.gpg",
                             f"deb {UBUNTU} noble main universe")}
# Steps of in_root.sh. The daemon's package needs the libraries of the release it was built on; the others run anywhere.
OWN = ["install_all", "service", "purge", "install_wheel", "wheel"]
OTHER = ["install_wheel", "wheel", "install_client", "client"]
ONLINE = {"install_all", "install_client", "purge"}


class Skipped(Exception):
    pass


def ubuntu_keyring(folder):
    """A keyring with the one key, made of the archive's own."""
    package, path = os.path.join(folder, "keyring.deb"), os.path.join(folder, "keyring.gpg")
    try:
        with urllib.request.urlopen(UBUNTU_KEYRING, timeout=30) as answer, open(package, "wb") as file:
            shutil.copyfileobj(answer, file)
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True, capture_output=True)
        taken = os.path.join(folder, "usr", "share", "keyrings", "ubuntu-archive-keyring.gpg")
        gpg = ["gpg", "--homedir", folder, "--no-default-keyring", "--keyring", taken]
        key = subprocess.run([*gpg, "--export", UBUNTU_KEY], check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise Skipped(f"Ubuntu's archive keyring is neither here nor to be had: {error}") from None
    if not key:
        raise Skipped(f"what the archive calls its keyring has no key {UBUNTU_KEY}")
    with open(path, "wb") as file:
        file.write(key)
    return path


def keyring_of(release, folder):
    path = os.path.join("/usr/share/keyrings", release.keyring)
    if os.path.exists(path):
        return path
    if not release.sources:
        raise Skipped(f"{release.keyring}, which its packages are signed with, is not on this machine")
    return ubuntu_keyring(folder)


def make_root(suite, folder, included=INCLUDED):
    release = RELEASES[suite]
    if os.geteuid() != 0:
        raise Skipped("making a root needs root")
    if not shutil.which("mmdebstrap"):
        raise Skipped("mmdebstrap is not installed")
    with tempfile.TemporaryDirectory(prefix="cgx-keyring-") as place:
        os.chmod(place, 0o755)  # apt's own user reads there
        debootstrap(release, suite, folder, included, keyring_of(release, place))


def debootstrap(release, suite, folder, included, keyring):
    # Its mounts and processes end with it, however it ends: else whoever removes the folder goes on into /proc and /sys.
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "mmdebstrap", "--variant=minbase",
               "--skip=cleanup/apt", "--aptopt=Acquire::Languages none", "--dpkgopt=force-unsafe-io", f"--include={included}",
               f"--keyring={keyring}", suite, folder, *filter(None, [release.sources])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=ROOT_SECONDS)
    except subprocess.TimeoutExpired:
        raise Skipped(f"no root within {ROOT_SECONDS} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("E: ")]
        raise Skipped("no root: " + (errors or ["mmdebstrap failed"])[0])


def inside(folder, step):
    """Runs a step with mounts and processes of its own, which end with it, and mostly without a network."""
    script = ("mount -t proc proc $0/proc && mount -t sysfs sysfs $0/sys && "
              "mount -t tmpfs -o mode=1777 tmpfs $0/dev/shm && { ip link set lo up || true; } && "
              "exec chroot $0 /opt/cgx/in_root.sh $1")
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"] + ([] if step in ONLINE else ["--net"])
    return subprocess.run([*apart, "sh", "-c", script, folder, step], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=STEP_SECONDS)


def try_steps(suite, packages, folder):
    """Lines to print, and how many steps passed and failed."""
    name = RELEASES[suite].name
    place = os.path.join(folder, "opt", "cgx")
    os.makedirs(place)
    wheels = glob.glob(os.path.join(packages, "*.whl"))
    for path in [*glob.glob(os.path.join(packages, "*.deb")), *wheels, os.path.join(HERE, "train.py"),
                 os.path.join(HERE, "in_root.sh")]:
        shutil.copy(path, place)
    own = glob.glob(os.path.join(packages, f"cgxd_*~{RELEASES[suite].mark}_*.deb"))
    lines, passed = [], 0
    if not own:
        lines.append(f"skipped: {name}: cgxd.deb is made for the release it was built on, which is another")
    for step in OWN if own else OTHER:
        if not wheels and step in ("install_wheel", "wheel", "client"):
            lines.append(f"skipped: {name}: {step}: there is no wheel")
            continue
        try:
            done = inside(folder, step)
            good, said = done.returncode == 0, (done.stdout + done.stderr).strip()
        except subprocess.TimeoutExpired:
            good, said = False, f"not done within {STEP_SECONDS} s"
        if not good:
            return [*lines, f"FAILED {name}: {step}", said], passed, 1
        passed += 1
        lines.append(f"ok: {name}: {step}" + (f": {said.splitlines()[-1]}" if said else ""))
    return lines, passed, 0


def try_root(suite, packages):
    with tempfile.TemporaryDirectory(prefix=f"cgx-root-{suite}-", ignore_cleanup_errors=True) as work:
        os.chmod(work, 0o755)  # apt's own user reads there
        folder = os.path.join(work, "root")
        try:
            make_root(suite, folder)
        except Skipped as reason:
            return [f"skipped: {RELEASES[suite].name}: {reason}"], 0, 0
        return try_steps(suite, packages, folder)


def main(packages, *suites):
    passed = failed = skipped = 0
    with concurrent.futures.ThreadPoolExecutor() as pool:
        tried = [pool.submit(try_root, suite, packages) for suite in suites or RELEASES]
        for future in concurrent.futures.as_completed(tried):
            lines, good, bad = future.result()
            passed, failed = passed + good, failed + bad
            skipped += sum(line.startswith("skipped: ") for line in lines)
            print("\n".join(lines), flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Makes the wheel `cgx`: the Python package with libcgx, cgxd, cgxctl and cgxsim inside and the libraries these need.

usage: wheel.py BUILD_FOLDER OUTPUT_FOLDER     needs auditwheel and patchelf (deploy/packages/build gets them)

auditwheel copies every library that is no part of the system into the wheel, points the programs to them ($ORIGIN) and
names the oldest glibc the result runs with. UCX comes without its modules, which leaves TCP; the Debian packages use
the system's UCX, which has RDMA too.
"""

import base64
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = ("cgxd", "cgxd-gpu", "cgxctl", "cgxsim")
# In a virtual environment's bin/: runs the program inside the package, without importing the package.
SCRIPT = """#!python
import importlib.util
import os
import sys

program = os.path.join(os.path.dirname(importlib.util.find_spec("cgx").origin), "{name}")
os.execv(program, ["{name}", *sys.argv[1:]])
"""


def install(build, prefix):
    for component in ("daemon", "runtime", "python"):
        subprocess.run(["cmake", "--install", build, "--prefix", prefix, "--component", component, "--strip"],
                       check=True, stdout=subprocess.DEVNULL)


def lay_out(build, tree):
    """The wheel's contents below `tree`; returns its dist-info folder's name."""
    with tempfile.TemporaryDirectory() as prefix:
        install(build, prefix)
        packages = os.path.join(prefix, "lib", "python3", "dist-packages")
        shutil.copytree(os.path.join(packages, "cgx"), os.path.join(tree, "cgx"))
        info = os.path.basename(glob.glob(os.path.join(packages, "cgx-*.dist-info"))[0])
        shutil.copytree(os.path.join(packages, info), os.path.join(tree, info))
        library = glob.glob(os.path.join(prefix, "lib*", "**", "libcgx.so.?"), recursive=True)[0]
        shutil.copy(os.path.realpath(library), os.path.join(tree, "cgx", "libcgx.so"))
        for name in PROGRAMS:
            shutil.copy(os.path.join(prefix, "bin", name), os.path.join(tree, "cgx", name))
    scripts = os.path.join(tree, info.replace(".dist-info", ".data"), "scripts")
    os.makedirs(scripts)
    for name in PROGRAMS:
        with open(os.path.join(scripts, name), "w", encoding="utf-8") as file:
            file.write(SCRIPT.format(name=name))
        os.chmod(os.path.join(scripts, name), 0o755)
    return info


def write_facts(tree, info, tag):
    with open(os.path.join(tree, info, "WHEEL"), "w", encoding="utf-8") as file:
        file.write(f"Wheel-Version: 1.0\nGenerator: cgxd\nRoot-Is-Purelib: false\nTag: {tag}\n")


def files_below(tree):
    return sorted(os.path.relpath(os.path.join(folder, name), tree)
                  for folder, _, names in os.walk(tree) for name in names)


def entry_of(path, mode):
    """No time in it: the same contents make the same wheel."""
    entry = zipfile.ZipInfo(path)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (stat.S_IFREG | stat.S_IMODE(mode)) << 16
    return entry


def pack(tree, info, wheel):
    record = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files_below(tree):
            full = os.path.join(tree, path)
            with open(full, "rb") as file:
                data = file.read()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}")
            archive.writestr(entry_of(path, os.stat(full).st_mode), data)
        archive.writestr(entry_of(f"{info}/RECORD", 0o644), "\n".join([*record, f"{info}/RECORD,,", ""]))


def keep_ucx_apart(tree):
    """UCX also looks for modules where the system's UCX has its own, and loading those into ours ends the process."""
    for path in glob.glob(os.path.join(tree, "cgx.libs", "libucs-*")):
        with open(path, "rb") as file:
            data = file.read()
        data, places = re.subn(rb"(?<=\0)/usr/[\w/.-]+/ucx(?=\0)",
                               lambda found: b"$ORIGIN/ucx".ljust(len(found[0]), b"\0"), data)
        if places != 1:
            sys.exit(f"{os.path.basename(path)} names {places} module folders, not 1: look at this UCX anew")
        with open(path, "wb") as file:
            file.write(data)


def add_licences(tree, info):
    """The terms of every library inside, as Debian ships them; the list of libraries is auditwheel's."""
    folder = os.path.join(tree, info, "licenses")
    os.makedirs(folder)
    with open(os.path.join(tree, info, "sboms", "auditwheel.cdx.json"), encoding="utf-8") as file:
        parts = json.load(file)["components"]
    for name in sorted({part["name"] for part in parts if part["purl"].startswith("pkg:deb/")}):
        shutil.copy(os.path.join("/usr/share/doc", name, "copyright"), os.path.join(folder, name))
    shutil.copy(os.path.join(ROOT, "LICENSE"), folder)


def repair(plain, work):
    """The wheel with its libraries inside, unpacked; returns where, and the file's name, which has the glibc in it."""
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]  # patchelf lies beside this Python
    done = subprocess.run([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", work, plain],
                          env={**os.environ, "PATH": path}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"auditwheel: {done.stdout}{done.stderr}")
    repaired = glob.glob(os.path.join(work, "*manylinux*.whl"))[0]
    tree = os.path.join(work, "repaired")
    with zipfile.ZipFile(repaired) as archive:
        for entry in archive.infolist():
            archive.extract(entry, tree)
            if mode := stat.S_IMODE(entry.external_attr >> 16):
                os.chmod(os.path.join(tree, entry.filename), mode)
    return tree, os.path.basename(repaired)


def main(build, output):
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = f"py3-none-{platform}"
    with tempfile.TemporaryDirectory() as work:
        tree = os.path.join(work, "tree")
        os.makedirs(tree)
        info = lay_out(build, tree)
        write_facts(tree, info, tag)
        plain = os.path.join(work, f"{info[:-len('.dist-info')]}-{tag}.whl")
        pack(tree, info, plain)
        tree, name = repair(plain, work)
        keep_ucx_apart(tree)
        add_licences(tree, info)
        os.remove(os.path.join(tree, info, "RECORD"))
        pack(tree, info, os.path.join(output, name))
    print(os.path.join(output, name))


if __name__ == "__main__":
    main(*sys.argv[1:3])

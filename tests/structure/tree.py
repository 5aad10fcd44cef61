"""The source tree as the structure tests see it: files, quoted and angled includes, compile commands."""

import functools
import json
import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SKIPPED_FOLDERS = {".git", "build", "__pycache__", ".cache", "node_modules"}
SOURCE_ENDINGS = (".cc", ".c", ".cu")
HEADER_ENDINGS = (".h", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)


@functools.cache
def files(*endings):
    """Paths relative to the root, sorted; all files without endings."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS)
        found += [os.path.relpath(os.path.join(folder, n), ROOT) for n in sorted(names)
                  if n != ".git" and (not endings or n.endswith(endings))]
    return found


@functools.cache
def text(path):
    with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def code():
    return files(*SOURCE_ENDINGS, *HEADER_ENDINGS, ".inc", ".def")


def includes(path):
    """(angled, name) of every include directive."""
    return [(mark == "<", name) for mark, name in INCLUDE.findall(text(path))]


@functools.cache
def all_commands():
    """(relative path, command line) of the build this test belongs to (CGX_BUILD_DIR); a source of each lane has several."""
    build = os.environ.get("CGX_BUILD_DIR", os.path.join(ROOT, "build", "release"))
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        return [(os.path.relpath(source, ROOT), entry["command"]) for entry in json.load(file)
                for source in compiled_together(entry["file"])]


def compile_commands():
    return dict(all_commands())


def compiled_together(path):
    """The sources behind one of the build's: itself, or those that CMake lets one include (CMAKE_UNITY_BUILD)."""
    if "/Unity/" not in path:
        return [path]
    with open(path, encoding="utf-8") as file:
        return re.findall(r'^#include "(.*)"$', file.read(), re.MULTILINE)


def sources_of(folder, root, build):
    """Those of the targets that CMake makes of that folder; what it writes for them goes into `build`."""
    script = os.path.join(ROOT, "tests", "structure", "sources.cmake")
    done = subprocess.run(["cmake", f"-DROOT={root}", f"-DBUILD={build}", "-P", script], cwd=os.path.join(root, folder),
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [os.path.join(folder, name) for name in re.findall(r"[\w./]+\.cc", done.stderr)]

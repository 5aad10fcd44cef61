"""Includes may only point down the layers of the design, and third libraries stay where they belong."""

import re
import unittest

import tree

# Folder -> what its files may include besides themselves. The longest matching folder decides.
BELOW = {
    "proto/wire": [],
    "proto/device": ["proto/wire"],
    "config": ["proto/wire", "proto/messages"],
    "transport": ["proto/wire"],
    "kernels": ["proto/wire", "proto/device"],
    "scheduler": ["kernels", "transport", "config", "proto/wire"],
    "daemon": ["scheduler", "kernels", "transport", "config", "proto"],
    "client": ["proto/wire", "proto/device"],
    "client/ctl": ["config", "proto", "client/include"],
}
# Rooms of a folder, lowest first; "": what lies in the folder itself. A file may include what is below it and its own room.
ROOMS = {
    "scheduler": ["", "plan", "exchange", "planners", "communicator", "engine", "sim"],
    "daemon": ["base", "net", "gpu", "data", "ipc", "mesh", "planner", "policy", "operators", "fleet", "sim", ""],
}
# Library -> (header pattern, folders or file prefixes that may include it).
LIBRARIES = {
    "gRPC": (r"^grpc(pp)?/|\.grpc\.pb\.h$", ["daemon/operators/", "daemon/fleet/", "client/ctl/", "tests/"]),
    "Protocol Buffers": (r"^google/protobuf/|\.pb\.h$", ["config/", "daemon/", "client/ctl/", "tests/"]),
    "UCX": (r"^(ucp|uct|ucs|ucm)/", ["transport/ucx"]),
    "CUDA": (r"^(cuda|cub|thrust|nvrtc)[\w./]*$", ["kernels/cuda/", "daemon/gpu", "client/", "tests/gpu/"]),
    "spdlog": (r"^spdlog/", ["daemon/base/log", "client/ctl/"]),
    "yaml-cpp": (r"^yaml-cpp/", ["config/"]),
    "CLI11": (r"^CLI/", ["config/usage", "daemon/", "client/ctl/", "tests/"]),
    "prometheus-cpp": (r"^prometheus/", ["daemon/operators/"]),
    "cpp-httplib": (r"^httplib\.h$", ["tests/"]),
    "xxHash": (r"^xxh(ash|3|_)[\w.]*$", ["proto/wire/", "kernels/", "tests/"]),
    "OpenSSL": (r"^openssl/", ["daemon/", "transport/tcp", "tests/"]),
    "Boost": (r"^boost/", ["daemon/base/"]),
}


def room_of(path):
    """(folder, room), where the folder has rooms."""
    folder, _, rest = path.partition("/")
    return (folder, rest.rpartition("/")[0].partition("/")[0]) if folder in ROOMS else None


def folder_of(path):
    return max((f for f in BELOW if path.startswith(f + "/")), key=len, default=None)


class Layers(unittest.TestCase):
    maxDiff = None

    def test_includes_point_down(self):
        upward = []
        for path in tree.code():
            home = folder_of(path)
            for angled, name in tree.includes(path):
                target = folder_of(name)
                if home is None or angled or target is None or target == home:
                    continue
                if not any(name.startswith(below + "/") for below in BELOW[home]):
                    upward.append(f"{path} includes {name}: {home}/ may only see {BELOW[home]}")
        self.assertEqual(upward, [])

    def test_rooms_see_only_rooms_below_them(self):
        upward = []
        for path in tree.code():
            home = room_of(path)
            for angled, name in tree.includes(path):
                target = room_of(name)
                if home is None or angled or target is None or target[0] != home[0]:
                    continue
                rooms = ROOMS[home[0]]
                if rooms.index(target[1]) > rooms.index(home[1]):
                    upward.append(f"{path} includes {name}: in {home[0]}/ rooms see those before them of {rooms}")
        self.assertEqual(upward, [])

    def test_headers_do_not_include_each_other_in_circles(self):
        below = {path: [name for angled, name in tree.includes(path) if not angled] for path in tree.files(".h", ".def", ".inc")}
        circles = []

        def follow(path, way):
            if path in way:
                circles.append(" -> ".join([*way[way.index(path):], path]))
                return
            if path in done:
                return
            for name in below.get(path, []):
                follow(name, [*way, path])
            done.add(path)

        done = set()
        for path in below:
            follow(path, [])
        self.assertEqual(circles, [])

    def test_third_libraries_stay_in_their_folders(self):
        astray = [f"{path} includes {name}: {library} belongs to {places}"
                  for path in tree.code() for _, name in tree.includes(path)
                  for library, (pattern, places) in LIBRARIES.items()
                  if re.search(pattern, name) and not path.startswith(tuple(places))]
        self.assertEqual(astray, [])

    def test_project_headers_are_included_from_the_root(self):
        relative = [f"{path} includes {name}" for path in tree.code()
                    for angled, name in tree.includes(path) if not angled and name.startswith(("./", "../"))]
        self.assertEqual(relative, [])


if __name__ == "__main__":
    unittest.main()

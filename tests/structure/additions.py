"""One more member of each list, put into a copy of the tree as CONTRIBUTING.md says. The member is called "planted".

What a member needs beside its row is found by name: sources that read the list are expanded, and each name that they make of
the row has to be defined where they, or the linker, find it.
"""

import contextlib
import os
import re
import shutil
import subprocess
from typing import Dict, List, NamedTuple

import tree

GENERATED = "build/generated"
COPIED = ("client", "config", "daemon", "kernels", "proto", "scheduler", "transport")
NAME = re.compile(r"planted|\b99\b", re.IGNORECASE)
FIELD = '\n  optional uint64 %s = 99 [(field) = {\n    help: "planted"  default_text: "1"  min: "1"  max: "9"\n  }];'


class Line(NamedTuple):
    """Goes behind what matches `after`, which is there once; without it to the end."""
    path: str
    text: str
    after: str = r"\n\Z"


class Need(NamedTuple):
    """Where a source that reads the list uses `used`, there is a `definition` in what it includes, or anywhere if `linked`."""
    used: str
    definition: str
    linked: bool = False


class Addition(NamedTuple):
    what: str                  # as CONTRIBUTING.md calls it
    list: str                  # the .def file
    lines: List[Line]          # that CONTRIBUTING.md counts
    needs: List[Need] = []
    files: Dict[str, str] = {}  # of its own


PLANNER = """#include "scheduler/planners/proposal.h"

namespace cgx::scheduler {
Result<Proposal> propose_planted(const PlannerQuestion& question) {
  return propose_fixed(question);
}
}  // namespace cgx::scheduler
"""
CODEC_HEADER = """#pragma once
#include "kernels/codecs/symmetric.h"

namespace cgx::kernels {
namespace {
struct PlantedFamily : Int8Family {};
}  // namespace
}  // namespace cgx::kernels
"""
CODEC_SOURCE = """#include "kernels/codecs/planted.h"

#include "kernels/lanes/lane.h"

namespace cgx::kernels {
CGX_CODEC(Planted)
}  // namespace cgx::kernels
"""
TRANSPORT_HEADER = """#pragma once
#include "transport/tcp.h"

namespace cgx::transport {
Result<std::unique_ptr<Transport>> make_planted_transport(const TcpOptions& options, Events& events);
}  // namespace cgx::transport
"""
TRANSPORT_SOURCE = """#include "transport/planted.h"

namespace cgx::transport {
Result<std::unique_ptr<Transport>> make_planted_transport(const TcpOptions& options, Events& events) {
  return make_tcp_transport(options, events);
}
}  // namespace cgx::transport
"""
TRANSPORT_MAKER = """#include "daemon/transport_options.h"
#include "transport/planted.h"

namespace cgx::daemon {
Result<TransportFactory> make_planted(const v1::Config&) {
  return TransportFactory([](transport::Events& events) {
    return transport::make_planted_transport(transport::TcpOptions(), events);
  });
}
}  // namespace cgx::daemon
"""


def additions():
    schedule = tree.text("scheduler/exchange/schedule_allgather.cc").replace("allgather", "planted")
    return [
        Addition("policy key", "scheduler/plan/policy.def",
                 [Line("proto/messages/policy.proto", FIELD % "planted", r"\nmessage Policy \{"),
                  Line("scheduler/plan/policy.def", "X(planted, uint64_t, 1)\n")],
                 [Need(r"\bcomplete\.planted\(\)|\bset_planted\(", r"\nmessage Policy \{\n  optional uint64 planted = ")]),
        Addition("time-out", "scheduler/timeouts.def",
                 [Line("proto/messages/config.proto", FIELD % "planted_ms", r"\nmessage Timeouts \{"),
                  Line("scheduler/timeouts.def", "X(planted, 1'000'000)\n")],
                 [Need(r"\bconfig\.planted_ms\(\)", r"\nmessage Timeouts \{\n  optional uint64 planted_ms = ")]),
        Addition("figure of a communicator", "proto/wire/figures.def",
                 [Line("proto/messages/control.proto", "\n  uint64 planted = 99;", r"\nmessage Communicator \{"),
                  Line("proto/wire/figures.def", 'X(planted, number, "planted", ">PLANTED", "planted")\n')],
                 [Need(r"\bset_planted\(|\bone\.planted\(\)", r"\nmessage Communicator \{\n  uint64 planted = ")]),
        Addition("counter", "proto/wire/counters.def", [Line("proto/wire/counters.def", 'X(planted, "planted")\n')]),
        Addition("transport", "transport/transports.def",
                 [Line("transport/transports.def", 'X(planted, "tcp once more")\n')],
                 [Need(r"&make_planted\b", r"\nResult<TransportFactory> make_planted\([^;]*\{", linked=True),
                  Need(r"\bmake_planted_transport\(", r"\nResult<std::unique_ptr<Transport>> make_planted_transport\([^;]*\{", linked=True)],
                 {"transport/planted.h": TRANSPORT_HEADER, "transport/planted.cc": TRANSPORT_SOURCE,
                  "daemon/transport_planted.cc": TRANSPORT_MAKER}),
        Addition("collective", "scheduler/plan/schedules.def",
                 [Line("proto/messages/policy.proto", '  choices: "planted"', r'choices: "two_level"'),
                  Line("scheduler/plan/schedules.def", 'X(Planted, planted, "allgather once more")\n')],
                 [Need(r"&kCollective_planted\b", r"\nconst CollectiveRow kCollective_planted\b", linked=True),
                  Need(r'kCollectiveWishes\[\] = {[^}]*"planted"', r'string collective = [^]]*choices: "planted"', linked=True)],
                 {"scheduler/exchange/schedule_planted.cc": schedule}),
        Addition("planner", "scheduler/planners/planners.def",
                 [Line("scheduler/planners/planners.def", 'X(planted, "fixed once more")\n')],
                 [Need(r"\bpropose_planted,", r"\nResult<Proposal> propose_planted\([^;]*\{", linked=True)],
                 {"scheduler/planners/planted.cc": PLANNER}),
        Addition("codec", "kernels/codecs.def",
                 [Line("kernels/codecs.def", 'X(Planted, 99, "planted", "int8 once more", "nothing", .promise = {"n", "none", "no"})\n')],
                 [Need(r"<PlantedFamily>", r"\bstruct PlantedFamily\b"),
                  Need(r"CGX_ON_LANE\(Planted\)\(spec\)", r"\nCGX_CODEC\(Planted\)", linked=True)],
                 {"kernels/codecs/planted.h": CODEC_HEADER, "kernels/codecs/planted.cc": CODEC_SOURCE}),
    ]


def readers(path):
    """The product's sources that include that list."""
    return [code for code in tree.code() if code.startswith(COPIED) and (False, path) in tree.includes(code)]


class Copy:
    """Of the tree, in a folder of its own, without what was built."""

    def __init__(self, folder):
        self.root = folder
        skipped = shutil.ignore_patterns(*tree.SKIPPED_FOLDERS)
        for name in os.listdir(tree.ROOT):
            source, target = os.path.join(tree.ROOT, name), os.path.join(folder, name)
            if name not in tree.SKIPPED_FOLDERS and os.path.isdir(source):
                shutil.copytree(source, target, symlinks=True, ignore=skipped)
            elif name not in tree.SKIPPED_FOLDERS:
                shutil.copy(source, target)

    def text(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8") as file:
            return file.read()

    def write(self, path, text):
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as file:
            file.write(text)

    def add(self, lines, files):
        for path, text in files.items():
            self.write(path, text)
        for line in lines:
            text = self.text(line.path)
            found = list(re.finditer(line.after, text))
            assert len(found) == 1, f"{line.path}: {len(found)} times {line.after}"
            self.write(line.path, text[:found[0].end()] + line.text + text[found[0].end():])

    @contextlib.contextmanager
    def added(self, lines, files):
        """For a while."""
        before = {line.path: self.text(line.path) for line in lines}
        self.add(lines, files)
        try:
            yield
        finally:
            for path, text in before.items():
                self.write(path, text)
            for path in files:
                os.remove(os.path.join(self.root, path))

    def expanded(self, path):
        """The source with the lists that it reads, but with nothing else that it includes."""
        kept = re.sub(r'^\s*#\s*include(?!\s*"[\w/.]+\.def").*', "", self.text(path), flags=re.MULTILINE)
        kept = re.sub(r"^\s*#\s*pragma once", "", kept, flags=re.MULTILINE)
        done = subprocess.run(["g++", "-E", "-P", "-x", "c++", "-"], cwd=self.root, input=kept, capture_output=True, text=True)
        assert done.returncode == 0, f"{path}: {done.stderr}"
        return done.stdout

    def included(self, path, seen=None):
        """What the source includes of the tree, and what that does; for generated headers their .proto file."""
        seen = set() if seen is None else seen
        path = re.sub(r"\.(grpc\.)?pb\.h$", ".proto", path)
        path = next((each for each in (path, f"{GENERATED}/{path}") if os.path.exists(os.path.join(self.root, each))), None)
        if path is not None and path not in seen:
            seen.add(path)
            for mark, name in tree.INCLUDE.findall(self.text(path)):
                self.included(name, seen)
        return seen

    def everything(self):
        return [os.path.relpath(os.path.join(folder, name), self.root) for top in COPIED
                for folder, _, names in os.walk(os.path.join(self.root, top)) for name in names
                if name.endswith((*tree.SOURCE_ENDINGS, *tree.HEADER_ENDINGS, ".proto"))]

    def defines(self, need, reader):
        places = self.everything() if need.linked else self.included(reader)
        return any(re.search(need.definition, self.text(place)) for place in places)

    def lacks(self, addition):
        """What is not known of the member where it has to be, in words."""
        taken = {path for folder in {path.split("/")[0] for path in addition.files}
                 for path in tree.sources_of(folder, self.root, f"{self.root}/build")}
        texts = {path: self.expanded(path) for path in readers(addition.list)}
        found = [f"{path} reads {addition.list} and shows no such row" for path, text in texts.items() if not NAME.search(text)]
        own = {path: self.text(path) for path in addition.files if os.path.exists(os.path.join(self.root, path))}
        found += [f"{path} includes {name}, which is not there" for path, text in own.items()
                  for mark, name in tree.INCLUDE.findall(text) if mark == '"' and not os.path.exists(os.path.join(self.root, name))]
        for need in addition.needs:
            users = [path for path, text in {**texts, **own}.items() if re.search(need.used, text)]
            if not users:
                found.append(f"no reader of {addition.list} has {need.used}")
            found += [f"{path} has {need.used} and finds no {need.definition}" for path in users if not self.defines(need, path)]
        return found + [f"no target has {path}" for path in addition.files if path.endswith(".cc") and path not in taken]

    def generate(self):
        """What sources include and nobody writes."""
        tree.sources_of("kernels", self.root, f"{self.root}/build")
        names = ["options", "policy", "config", "control"]
        subprocess.run(["protoc", "-I.", f"--cpp_out={GENERATED}", *(f"proto/messages/{name}.proto" for name in names)],
                       cwd=self.root, check=True)

    def errors_of(self, sources, flags):
        """What the compiler says of all of them at once."""
        lines = "".join(f'#include "{source}"\n' for source in sources)
        done = subprocess.run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror=switch", "-Wno-missing-field-initializers", "-fsyntax-only", "-I.", f"-I{GENERATED}", *flags, "-x", "c++", "-"],
                              cwd=self.root, input=lines, capture_output=True, text=True)
        return done.stderr if done.returncode else ""

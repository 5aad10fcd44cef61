"""Numbers of the protocols, as the sources say them: tests speak what this tree speaks."""

import os
import re

from daemons import ROOT


def constant(path, name):
    """The integer that `constexpr ... NAME = ...;` of a source gives the name."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        found = re.findall(rf"^constexpr u?int\d+_t {name} = (0x[0-9a-fA-F]+|\d+);", file.read(), re.MULTILINE)
    if len(found) != 1:
        raise LookupError(f"{path} has {len(found)} lines 'constexpr ... {name} = NUMBER;', not one: where has it gone?")
    return int(found[0], 0)


SESSION_MAGIC = constant("proto/wire/session_messages.h", "kSessionMagic")
SESSION_VERSION = constant("proto/wire/session_messages.h", "kSessionVersion")
MEETING_MAGIC = constant("client/meeting_records.cc", "kMagic")  # of what ranks publish where they meet
MEETING_VERSION = constant("client/meeting_records.cc", "kVersion")
MESH_VERSION = constant("daemon/mesh/mesh_handshake.h", "kMeshVersion")

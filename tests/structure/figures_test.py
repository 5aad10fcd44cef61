"""Every figure that is shown has a writer: fields of scheduler/communicator/snapshot.h are set, counters are counted."""

import functools
import re
import unittest

import tree

SHOWN = ("scheduler/planners/plan_note.h", "scheduler/communicator/snapshot.h")
COUNTERS = "proto/wire/counters.def"
LISTED = re.compile(r'^#define X.*\n#include "(?P<list>.*\.def)"\n#undef X$', re.MULTILINE)
COUNTED = re.compile(r"\b(?:count|add)\(\s*(?:\w+::)*Counter::k(\w+)")
WRITTEN = r"\s*(?:[+|]?=(?!=)|\.push_back\(|\.emplace_back\()"


def without_comments(text):
    return re.sub(r"//[^\n]*", "", text)


@functools.cache
def writers():
    """The sources that may set a figure, by path."""
    return {path: without_comments(tree.text(path)) for path in tree.files(".cc", ".h")
            if path.startswith(("scheduler/", "daemon/")) and path not in SHOWN}


def declared(statement):
    """(type, names) of `uint64_t a = 0, b = 0`."""
    kind, names = re.match(r"((?:[\w:]|<.*>)+)\s+(.*)", statement, re.DOTALL).groups()
    return kind, [re.match(r"\w+", name.strip()).group() for name in names.split(",")]


def names_in(path):
    return re.findall(r"^X\((\w+)", tree.text(path), re.MULTILINE)


def with_lists(text):
    """With the fields that a list makes."""
    return LISTED.sub(lambda found: "".join(f"uint64_t {name} = 0;\n" for name in names_in(found["list"])), text)


def structs():
    """{struct: {field: type}} of the plain structs in SHOWN."""
    found = {}
    text = "".join(with_lists(without_comments(tree.text(path))) for path in SHOWN)
    for name, body in re.findall(r"^struct (\w+) \{(.*?)^\};", text, re.MULTILINE | re.DOTALL):
        statements = [s.strip() for s in body.split(";") if s.strip()]
        found[name] = {field: kind for kind, fields in map(declared, statements) for field in fields}
    return found


def braces(struct, source):
    """What stands between the braces of `Struct{...}`."""
    return re.findall(rf"\b{struct}\{{((?:[^{{}}]|\{{[^{{}}]*\}})*)\}}", source)


def sets(struct, field, position, lists, source):
    """The source sets the field of a variable of that type, of an element of a list of them, or between braces."""
    if field not in source and f"{struct}{{" not in source:
        return False
    variables = re.findall(rf"(?<!const )(?<!const scheduler::)\b{struct}\s*&?\s+(\w+)\b", source)
    elements = re.findall(rf"(?<!const )std::vector<{struct}>&?\s+(\w+)", source)
    for variable in variables:
        if re.search(rf"\b{variable}\.{field}{WRITTEN}|\badd_\w+\({variable}\.{field}\)", source):
            return True
    for name in [*elements, *lists]:
        if re.search(rf"\b{name}\[[^\n]*\]\.{field}{WRITTEN}", source):
            return True
    for inside in braces(struct, source):
        named = re.findall(r"\.(\w+) = ", inside)
        if field in named or (not named and position <= inside.count(",")):
            return True
    return False


def unwritten(sources):
    shown = structs()
    missing = []
    for struct, fields in shown.items():
        lists = [name for other in shown.values() for name, kind in other.items() if kind == f"std::vector<{struct}>"]
        for position, field in enumerate(fields):
            if not any(sets(struct, field, position, lists, source) for source in sources.values()):
                missing.append(f"{struct}::{field}")
    return missing


def uncounted(sources):
    counted = {name for source in sources.values() for name in COUNTED.findall(source)}
    return [name for name in names_in(COUNTERS) if name not in counted]


def without(sources, pattern):
    return {path: re.sub(pattern, "", source) for path, source in sources.items()}


class Figures(unittest.TestCase):
    maxDiff = None

    def test_structs_are_read(self):
        self.assertIn("late_ns", structs()["RankSnapshot"])
        self.assertEqual(list(structs()["RoundSnapshot"]), ["cpu_ns", "wall_ns", "what"])
        self.assertEqual(structs()["Snapshot"]["peers"], "std::vector<PeerSnapshot>")
        self.assertEqual(structs()["CommunicatorSnapshot"]["watermark"], "uint64_t")

    def test_each_shown_field_is_set_somewhere(self):
        self.assertEqual(unwritten(writers()), [])

    def test_each_counter_is_counted_somewhere(self):
        self.assertEqual(uncounted(writers()), [])

    def test_a_lost_writer_is_noticed(self):
        for pattern, field in [(r".*\.late_ns = .*", "RankSnapshot::late_ns"), (r".*\.rtt_ns = .*", "PeerSnapshot::rtt_ns"),
                               (r"\.completions = ", "SessionSnapshot::completions"),
                               (r"shown\.reserved_bytes = .*", "CommunicatorSnapshot::reserved_bytes")]:
            self.assertEqual(unwritten(without(writers(), pattern)), [field], pattern)
        self.assertEqual(uncounted(without(writers(), r"count\(Counter::kgradient_bytes,.*")), ["gradient_bytes"])


if __name__ == "__main__":
    unittest.main()

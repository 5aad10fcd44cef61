"""How many places a new member of a list needs, as CONTRIBUTING.md says. Counted in two ways.

Those that are there: a source that names nearly all members of a list by their wiring (their getters, enumerators, makers) is a
place that a new one has to be added to. Tests and texts made from the lists do not count; what a member does with its value is
its own business.

One more of each, in a copy of the tree: with the lines that CONTRIBUTING.md names it is known everywhere, without one it is not.
"""

import functools
import re
import statistics
import tempfile
import unittest

import additions
import headers_test
import tree

NEARLY_ALL = 0.8
COUNTED = tuple(f"{folder}/" for folder in ("client", "config", "daemon", "kernels", "proto", "scheduler", "transport"))
ROW = re.compile(r"^X\((\w+)(?:, \d+, \"|, )?(\w+)?", re.MULTILINE)
SPECIAL = {"codec", "rules", "menu"}                  # policy keys that are more than a value
AT_START = {"handshake_ms", "join_ms", "drain_ms"}    # time-outs that are read where they are used
LINE = re.compile(r"^\| (?P<what>[^|]+?) \| (?P<number>\d+) \| (?P<places>[^|]*) \|", re.MULTILINE)
PLACE = re.compile(r"`(?P<path>[\w./]+)`(?: \((?P<lines>\d+)\))?")


def keys_of(proto, message):
    body = re.search(rf"^message {message} {{\n(.*?)^}}", tree.text(proto), re.MULTILINE | re.DOTALL)[1]
    return re.findall(r"^  (?:optional|repeated) \S+ (\w+) = \d+", body, re.MULTILINE)


def fields_of(proto, message):
    """(name, number) of plain ones."""
    body = re.search(rf"^message {message} {{\n(.*?)^}}", tree.text(proto), re.MULTILINE | re.DOTALL)[1]
    return re.findall(r"^  uint64 (\w+) = (\d+);", body, re.MULTILINE)


def rows(path):
    return [tuple(filter(None, row)) for row in ROW.findall(tree.text(path))]


def key_forms(key):
    return rf"\b(?:set_)?{key}\b|\b{re.sub('_ms$', '_ns', key)}\b|\bX\({re.sub('_ms$', '', key)}\b"


def lists():
    """What a member of each is called where it is wired up: {list: [(what all its forms have, pattern)]}."""
    fields = dict(fields_of("proto/messages/control.proto", "Communicator"))
    return {
        "policy key": [(key, key_forms(key)) for key in keys_of("proto/messages/policy.proto", "Policy") if key not in SPECIAL],
        "time-out": [(key[:-3], key_forms(key)) for key in keys_of("proto/messages/config.proto", "Timeouts") if key not in AT_START],
        "figure of a communicator": [(name, rf"\bX\({name}\b|\bset_{name}\(|\b{name} = {fields.get(name)};")
                                     for name, *_ in rows("proto/wire/figures.def")],
        "counter": [(name, rf"\bk?{name}\b") for name, *_ in rows("proto/wire/counters.def")],
        "transport": [(name, rf"\bX\({name}\b|\bmake_{name}\(") for name, *_ in rows("transport/transports.def")],
        "collective": [("", rf"\bX\({stem}\b|\bk{stem}\b|\"{text}\"|\bschedule_{text}\.cc|\bkCollective_{text}\b") for stem, text in rows("scheduler/plan/schedules.def")],
        "planner": [(name, rf"\bX\({name}\b|\bk{name}\b|\bpropose_{name}\b|\"{name}\"") for name, *_ in rows("scheduler/planners/planners.def")],
        "codec": [(stem, rf"\bX\({stem}\b|\bk{stem}\b") for stem, *_ in rows("kernels/codecs.def")],
    }


@functools.cache
def without_comments(path):
    """Nor help texts, which name other keys."""
    comment = r"^[ \t]*help: .*" if path.endswith(".proto") else r"^[ \t]*(//|#).*" if path.endswith((".cc", ".h", ".py")) else r"(?!)"
    return re.sub(comment, "", tree.text(path), flags=re.MULTILINE)


def lines_with(literal, pattern, text):
    if literal not in text:
        return 0
    return len({text.count("\n", 0, found.start()) for found in re.finditer(pattern, text)})


def places(patterns):
    """{source: lines for each member} of those that name nearly all members."""
    found = {}
    for path in tree.files(".cc", ".h", ".def", ".proto", ".py", "CMakeLists.txt"):
        if not path.startswith(COUNTED):
            continue
        counts = [lines_with(*pattern, without_comments(path)) for pattern in patterns]
        if sum(map(bool, counts)) >= NEARLY_ALL * len(counts):
            found[path] = round(statistics.median(count for count in counts if count))
    return found


class Places(unittest.TestCase):
    maxDiff = None

    def test_additions_need_the_places_that_contributing_names(self):
        told = {m["what"]: m for m in LINE.finditer(tree.text("CONTRIBUTING.md"))}
        for what, patterns in lists().items():
            with self.subTest(what):
                self.assertGreater(len(patterns), 1)
                found = places(patterns)
                print(f"figure: places for a {what}: {sum(found.values())} lines in {len(found)} files", flush=True)
                shown = {m["path"]: int(m["lines"] or 1) for m in PLACE.finditer(told[what]["places"])}
                self.assertEqual(found, shown)
                self.assertEqual(sum(found.values()), int(told[what]["number"]))

    def test_a_second_copy_of_a_list_is_a_place(self):
        """The count above can fail: a place is noticed whatever it is called."""
        patterns = lists()["counter"]
        self.assertEqual(list(places(patterns)), ["proto/wire/counters.def"])
        self.assertEqual(list(places(patterns[:1] + [("nothing", r"\bnothing_is_called_so\b")] * 9)), [])


class Additions(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.copy = additions.Copy(folder.name)

    def test_a_new_member_needs_the_lines_that_contributing_names(self):
        """Each of its lines and files, too: a place that was left out is noticed."""
        told = {m["what"]: m for m in LINE.finditer(tree.text("CONTRIBUTING.md"))}
        self.assertEqual({each.what for each in additions.additions()}, set(told))
        for each in additions.additions():
            with self.subTest(each.what):
                lines = [line.path for line in each.lines]
                shown = {m["path"]: int(m["lines"] or 1) for m in PLACE.finditer(told[each.what]["places"])}
                self.assertEqual({path: lines.count(path) for path in lines}, shown)
                self.assertEqual(len(lines), int(told[each.what]["number"]))
                self.assertEqual(self.lacks(each), [])
                for line in each.lines:
                    self.assertNotEqual(self.lacks(each, without=line), [], f"nobody notices that {line} is left out")
                for path in each.files:
                    self.assertNotEqual(self.lacks(each, without=path), [], f"nobody notices that {path} is left out")

    def lacks(self, addition, without=None):
        lines = [line for line in addition.lines if line != without]
        files = {path: text for path, text in addition.files.items() if path != without}
        with self.copy.added(lines, files):
            return self.copy.lacks(addition)

    def test_the_tree_with_one_more_of_each_compiles(self):
        """So no source that reads a list needs another line."""
        every = additions.additions()
        for each in every:
            self.copy.add(each.lines, each.files)
        sources = {path for each in every for path in [*additions.readers(each.list), *each.files] if path.endswith(".cc")}
        self.copy.generate()
        flags = [flag for flag in headers_test.folder_flags("daemon/options.h") if flag != "-I" + tree.ROOT]
        lane = {path for path in sources if path.startswith(("kernels/codecs/", "kernels/lanes/"))}
        self.assertEqual(self.copy.errors_of(sorted(lane), ["-DCGX_LANE=scalar", "-DCGX_LANE_IS_SCALAR", *flags]), "")
        self.assertEqual(self.copy.errors_of(sorted(sources - lane), flags), "")


if __name__ == "__main__":
    unittest.main()

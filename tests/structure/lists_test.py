"""A list (status codes, element types, codecs, counters) is declared in its .def file and nowhere else."""

import os
import re
import unittest

import tree

ROW = re.compile(r"^\s*X\(\s*\"?([\w-]+)\"?", re.MULTILINE)
# A file that declares this share of a list's names (at least four) holds a second copy of the list.
SHARE = 0.6


def rows(path):
    return ROW.findall(tree.text(path))


def declares(source, name):
    """An enumerator, a #define, a Python constant or a quoted name; uses such as `case kX:` do not count."""
    prefixed = rf"(?:k|k_|CGX_|CGX_STATUS_|CGX_DTYPE_|CGX_CODEC_|CGX_COUNTER_)?{re.escape(name)}"
    return re.search(rf"^\s*(?:#\s*define\s+{prefixed}\b|{prefixed}\s*[=,]|\"{re.escape(name)}\"\s*[:,=])",
                     source, re.MULTILINE)


class Lists(unittest.TestCase):
    maxDiff = None

    def test_lists_are_found(self):
        for path in tree.files(".def"):
            self.assertGreater(len(rows(path)), 0, f"{path}: no X(...) row was found")

    def test_rows_are_unique(self):
        for path in tree.files(".def"):
            self.assertEqual(len(rows(path)), len(set(rows(path))), f"{path} names a row twice")

    def test_each_list_is_declared_once(self):
        others = [p for p in tree.files(".cc", ".c", ".h", ".cu", ".cuh", ".py", ".proto") if "_test." not in p]
        copies = []
        for path in tree.files(".def"):
            names = rows(path)
            for other in others:
                copied = [n for n in names if n in tree.text(other) and declares(tree.text(other), n)]
                if len(copied) >= 4 and len(copied) >= SHARE * len(names):
                    copies.append(f"{other} repeats {path}: {copied}")
        self.assertEqual(copies, [])

    def test_each_list_is_used(self):
        included = {name for path in tree.code() for _, name in tree.includes(path)}
        unused = [p for p in tree.files(".def") if not any(p == n or p.endswith("/" + n) for n in included)]
        self.assertEqual(unused, [])

    def test_codecs_whose_strength_python_calls_bits_are_those_of_the_list(self):
        """Python sees no list of this tree."""
        said = re.search(r"^_QUANTIZERS = \((.*)\)$", tree.text("client/python/cgx/_report.py"), re.MULTILINE)[1]
        listed = re.split(r"^X\(", tree.text("kernels/codecs.def"), flags=re.MULTILINE)[1:]
        self.assertEqual(re.findall(r'"(\w+)"', said), [row.split('"')[1] for row in listed if "Strength::kBits" in row])

    def test_a_list_seen_at_a_second_place_is_the_same_file(self):
        homes = {}
        for path in tree.files(".def"):
            homes.setdefault(os.path.basename(path), set()).add(os.path.realpath(os.path.join(tree.ROOT, path)))
        self.assertEqual({name: paths for name, paths in homes.items() if len(paths) > 1}, {})


if __name__ == "__main__":
    unittest.main()

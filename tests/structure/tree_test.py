"""The tree itself: compile flags of the arithmetic, READMEs, file sizes, dead files, paths of one machine."""

import os
import re
import tempfile
import unittest

import tree

LINES_MAX = 600
COLUMNS_MAX = 100
FORBIDDEN_FLAGS = ("-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-fassociative-math", "-march=native",
                   "-ffp-contract=fast", "-mdaz-ftz", "-ffinite-math-only")
MACHINE_PATHS = re.compile(r"(^|[^\w.-])/(" + "|".join(["wo" + "rk", "fa" + "rm", "tmp/" + "wt"]) + r")/", re.MULTILINE)
MIRRORS = ("proto", "config", "kernels", "transport", "scheduler", "client", "daemon", "deploy", "include")


# A line that opens a body; macros and constructors with initialisers count as they come.
FUNCTION = re.compile(r"^(?!\s*(?:if|for|while|switch|else|do|catch|return|namespace|struct|class|enum|union|extern)\b)"
                      r"[^\n#/]*\)[^\n;(){}]*\{[^\n]*$", re.MULTILINE)


def sizes(paths):
    """For people: "657 files, 78283 lines; half of the files have up to 79 lines and 6 functions, ..."."""
    lines = sorted(tree.text(path).count("\n") for path in paths)
    functions = sorted(len(FUNCTION.findall(tree.text(path))) for path in paths)
    half, most = len(paths) // 2, 9 * len(paths) // 10
    return (f"{len(paths)} files, {sum(lines)} lines, {sum(functions)} functions; half of the files have up to {lines[half]} "
            f"lines and {functions[half]} functions, nine of ten up to {lines[most]} and {functions[most]}")


def top_folders():
    return sorted({p.split("/")[0] for p in tree.files() if "/" in p and not p.startswith(".")})


def in_a_room(path, cmake):
    """A target of that CMake file takes all sources of the path's folder: ROOMS of cgx_library and cgx_test."""
    room = os.path.relpath(os.path.dirname(path), os.path.dirname(cmake) or ".")
    text = tree.text(cmake)
    rooms = [room for words in re.findall(r"\bROOMS((?:\s+[\w./]+)+)", text) for room in words.split()]
    rooms += [room for words in re.findall(r"cgx_sources_of\(\w+ \S+((?:\s+[\w./]+)+)\)", text) for room in words.split()]
    return room in rooms


class Tree(unittest.TestCase):
    maxDiff = None

    def test_lines_of_code_fit_in_their_columns(self):
        """clang-format leaves comments as they are."""
        for path in tree.files():
            if path.endswith((".cc", ".c", ".h", ".cu")):
                for number, line in enumerate(tree.text(path).splitlines(), 1):
                    self.assertLessEqual(len(line), COLUMNS_MAX, f"{path}:{number}")

    def test_kernels_are_compiled_without_contraction_or_fast_math(self):
        kernels = {s: c for s, c in tree.compile_commands().items() if s.startswith("kernels/")}
        self.assertTrue(kernels, "no source of kernels/ is built")
        for source, command in kernels.items():
            self.assertIn("-ffp-contract=off", command, source)
            for flag in FORBIDDEN_FLAGS:
                self.assertNotIn(flag, command, source)

    def test_each_folder_has_a_readme(self):
        self.assertEqual([f for f in top_folders() if f"{f}/README.md" not in tree.files()], [])

    def test_each_python_test_is_run_by_something(self):
        """A CMakeLists.txt names it, by a list of short names too, or a program does."""
        idle = []
        for path in tree.files():
            if not re.search(r"^tests/.*_test\.py$", path):
                continue
            folder, name = os.path.split(path)
            programs = [".ci/run", *(p for p in tree.files() if os.path.dirname(p) == folder and not p.endswith((".md", "_test.py")))]
            said = "\n".join(tree.text(p) for p in programs)
            lists = " ".join(re.findall(r"foreach\(([^)]*)\)", said))
            stem = name.removesuffix(".py")
            if not re.search(rf"\b{stem}\b", said) and stem.removesuffix("_test") not in lists.split():
                idle.append(path)
        self.assertEqual(idle, [])

    def test_subfolders_are_described(self):
        """Either by a README of their own or by name in their parent's; the tests' rooms by the folder that they mirror."""
        unexplained = []
        for folder in sorted({os.path.dirname(p) for p in tree.code()}):
            parent, name = os.path.split(folder)
            if not parent or name in MIRRORS or "include" in parent.split("/") or f"{folder}/README.md" in tree.files():
                continue
            if parent.startswith("tests/") and f"{name}/" in tree.text(f"{parent[len('tests/'):]}/README.md"):
                continue
            if f"{parent}/README.md" not in tree.files() or f"{name}/" not in tree.text(f"{parent}/README.md"):
                unexplained.append(folder)
        self.assertEqual(unexplained, [])

    def test_no_file_is_longer_than_one_reads(self):
        lines = {p: tree.text(p).count("\n") for p in tree.files(*tree.SOURCE_ENDINGS, ".h", ".inc", ".py", ".proto")}
        self.assertEqual({p: n for p, n in lines.items() if n > LINES_MAX}, {})
        product = [path for path in tree.code() if not path.startswith("tests/")]
        tests = [path for path in tree.code() if path.startswith("tests/")]
        print(f"product: {sizes(product)}\ntests: {sizes(tests)}")
        under_300 = sum(tree.text(path).count("\n") < 300 for path in product)
        self.assertGreater(under_300, 0.9 * len(product), "CONTRIBUTING.md says so")

    def test_each_source_belongs_to_a_target(self):
        cmake = [p for p in tree.files() if p.endswith(("CMakeLists.txt", ".cmake"))]
        with tempfile.TemporaryDirectory() as build:
            known = {path for folder in ("daemon", "kernels", "transport") for path in tree.sources_of(folder, tree.ROOT, build)}
        dead = []
        for path in tree.files(*tree.SOURCE_ENDINGS):
            if path in known:
                continue
            stem = re.escape(os.path.splitext(os.path.basename(path))[0])
            near = [c for c in cmake if path.startswith(os.path.dirname(c))]
            if not any(re.search(rf"\b{stem}\b", tree.text(c)) or in_a_room(path, c) for c in near):
                dead.append(path)
        self.assertEqual(dead, [])

    def test_each_header_is_included(self):
        included = [name for path in tree.code() for _, name in tree.includes(path)]
        dead = [h for h in tree.files(*tree.HEADER_ENDINGS, ".inc")
                if not any(h == name or h.endswith("/" + name) for name in included)]
        self.assertEqual(dead, [])

    def test_each_script_is_named_somewhere(self):
        dead = []
        for path in tree.files(".py"):
            name = re.sub(r"(_test)?\.py$", "", os.path.basename(path))  # CMake loops over names without _test
            others = [p for p in tree.files() if p != path and not p.endswith(".md")]
            if not name.startswith("__") and not any(re.search(rf"\b{name}(_test)?\b", tree.text(p)) for p in others):
                dead.append(path)
        self.assertEqual(dead, [])

    def test_rules_that_comments_name_are_written_down(self):
        rules = [int(number) for number in re.findall(r"^(\d+)\. ", tree.text("proto/PROTOCOL.md"), re.MULTILINE)]
        self.assertEqual(rules, list(range(1, len(rules) + 1)))
        named = {(path, int(number)) for path in tree.code() for numbers in
                 re.findall(r"PROTOCOL ((?:\d+(?:, | and )?)+)", tree.text(path)) for number in re.findall(r"\d+", numbers)}
        self.assertGreater(len(named), 10)
        self.assertEqual(sorted(each for each in named if each[1] not in rules), [])

    def test_no_comment_is_a_banner(self):
        banners = re.compile(r"^\s*(//|#) ?-{3,}", re.MULTILINE)
        self.assertEqual([path for path in (*tree.code(), *tree.files(".py")) if banners.search(tree.text(path))], [])

    def test_pages_that_pages_name_are_there(self):
        missing = []
        for path in tree.files(".md"):
            for name in re.findall(r"`([\w./-]+\.md)`|\]\(([\w./-]+\.md)", tree.text(path)):
                name = name[0] or name[1]
                near = os.path.normpath(os.path.join(os.path.dirname(path), name))
                if name not in tree.files() and near not in tree.files():
                    missing.append((path, name))
        self.assertEqual(missing, [])

    def test_no_path_of_one_machine_is_written_down(self):
        self.assertEqual([p for p in tree.files() if MACHINE_PATHS.search(tree.text(p))], [])


if __name__ == "__main__":
    unittest.main()

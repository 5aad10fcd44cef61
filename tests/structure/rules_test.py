"""Rules of the code that no compiler holds: who may read a clock, and that a lock says what it guards."""

import re
import unittest

import tree

# Time is passed in: equal seeds give equal runs, and a figure that is measured has one owner.
WITHOUT_CLOCK = ("scheduler/", "tests/sim/")
MAY_READ_A_CLOCK = ()
CLOCK = re.compile(r"\b(?:steady|system|high_resolution|utc|file)_clock\b|\bclock_gettime\b|\bCLOCK_[A-Z]|\bgettimeofday\b|"
                   r"\btimespec_get\b|\bstd::time\b|\btime\(\s*(?:0|NULL|nullptr|&\w+)\s*\)|\bclock\(\)|\bmonotonic_ns\b|"
                   r"\brdtscp?\b|\bsleep_(?:for|until)\b")
# proto/wire/mutex.h has the annotated one. libcgx waits on condition variables under a lock that it hands around; spdlog's
# sink takes a mutex as a type.
PLAIN_MUTEX = re.compile(r"\bstd::(?:recursive_|shared_|timed_)*mutex\b")
MAY_HAVE_A_PLAIN_MUTEX = ("proto/wire/mutex.h", "client/session.h", "daemon/base/log.cc")


def without_comments(path):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", tree.text(path), flags=re.DOTALL)


def found(pattern, paths):
    return [f"{path}: {match.group()}" for path in paths for match in pattern.finditer(without_comments(path))]


class Rules(unittest.TestCase):
    maxDiff = None

    def test_neither_scheduler_nor_simulation_reads_a_clock(self):
        paths = [path for path in tree.code() if path.startswith(WITHOUT_CLOCK) and path not in MAY_READ_A_CLOCK]
        self.assertGreater(len(paths), 200)
        self.assertEqual(found(CLOCK, paths), [])

    def test_ways_to_read_a_clock_are_known(self):
        """By name, and in the programs that do read one."""
        for text in ("std::chrono::steady_clock::now()", "using Clock = std::chrono::system_clock;", "clock_gettime(id, &now)",
                     "timerfd_create(CLOCK_MONOTONIC, 0)", "std::time(nullptr)", "time(NULL)", "gettimeofday(&now, nullptr)",
                     "wire::monotonic_ns()", "std::this_thread::sleep_for(1ms)"):
            self.assertRegex(text, CLOCK)
        for text in ("port_.now_ns()", "time(line, 3, latency_ns_)", "clocks_.tick()", "VirtualTime time_;"):
            self.assertNotRegex(text, CLOCK)
        self.assertGreater(len(found(CLOCK, [path for path in tree.code() if path.startswith("daemon/")])), 10)

    def test_the_product_is_compiled_with_its_warnings(self):
        """Of g++."""
        commands = [(source, command) for source, command in tree.all_commands()
                    if not source.startswith(("tests/", "..")) and source.endswith(".cc")]
        if any("clang" in command.split(" -", 1)[0] for _, command in commands):
            self.skipTest("clang has other warnings")
        self.assertGreater(len(commands), 200)
        self.assertEqual([source for source, command in commands
                          if not re.search(r"-Wshadow .*-Wconversion\b", command)], [])

    def test_locks_say_what_they_guard(self):
        product = [path for path in tree.code() if not path.startswith("tests/") and path not in MAY_HAVE_A_PLAIN_MUTEX]
        self.assertEqual(found(PLAIN_MUTEX, product), [])
        for path in MAY_HAVE_A_PLAIN_MUTEX:
            self.assertTrue(found(PLAIN_MUTEX, [path]), f"{path} needs no exception")


if __name__ == "__main__":
    unittest.main()

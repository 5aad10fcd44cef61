"""Runs one Python test file and leaves its cases beside GoogleTest's, so that tests/summary.py counts both alike.

usage: unittest_main.py NAME FILE     (ctest calls it; by hand, leave CGX_TEST_RESULTS unset)
"""

import importlib.util
import json
import os
import sys
import unittest


class CaseResult(unittest.TextTestResult):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.cases = []

    def _add(self, test, result="COMPLETED", failures=None):
        case = {"name": test.id().rsplit(".", 1)[-1], "result": result}
        self.cases.append(dict(case, failures=failures) if failures else case)

    def addSuccess(self, test):
        super().addSuccess(test)
        self._add(test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._add(test, "SKIPPED")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._add(test, failures=[{"failure": str(error[1])}])

    def addError(self, test, error):
        super().addError(test, error)
        self._add(test, failures=[{"failure": str(error[1])}])

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self._add(subtest, failures=[{"failure": str(error[1])}])


def main(name, path):
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(resultclass=CaseResult, verbosity=2).run(suite)
    if results := os.environ.get("CGX_TEST_RESULTS"):
        with open(os.path.join(results, f"test_{name}.json"), "w", encoding="utf-8") as file:
            json.dump({"testsuites": [{"name": name, "testsuite": result.cases}]}, file)
    if not result.testsRun:
        print(f"{path}: no tests")
        return 1
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))

"""The mistakes of tests/planted still fit the code, so that they can be planted when somebody wants to."""

import collections
import os
import sys
import unittest

import tree

sys.path.insert(0, os.path.join(tree.ROOT, "tests", "planted"))

from fault import Misfit, edited  # noqa: E402
from faults import FAULTS  # noqa: E402


class Planted(unittest.TestCase):
    def test_mistakes_fit_the_code_and_have_names_of_their_own(self):
        names = collections.Counter(fault.name for fault in FAULTS)
        self.assertEqual([name for name, times in names.items() if times > 1], [])
        of_file = collections.defaultdict(list)
        for fault in FAULTS:
            of_file[fault.file].append(fault)
        misfits = []
        for file, faults in of_file.items():
            try:
                edited(tree.text(file), faults)
            except Misfit as error:
                misfits.append(str(error))
        self.assertEqual(misfits, [])


if __name__ == "__main__":
    unittest.main()

"""The commands in README.md, CONTRIBUTING.md and deploy/ work as they stand there.

Above each block of them stands how it is tried, as a comment: "run" (bash, or Python as a part of a training script that then
trains until the document ends), "run in the background", "checked" (a configuration), "run on each machine by .ci/run packages",
"run on one machine by .ci/run packages" and "run by .ci/run packages" (two_machines.py, word for word, and what makes the packages by
.ci/run itself), "run into another folder by tests/deploy/install_test.py" or "not run here: WHY". The blocks of a document run in
order, in one shell, on a machine of their own (namespaces; skipped without root).
"""

import os
import re
import shutil
import subprocess
import tempfile
import textwrap
import unittest
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, "build", "release")
ELSEWHERE = "run on each machine by .ci/run packages"
ON_ONE = "run on one machine by .ci/run packages"
PACKAGES = "run by .ci/run packages"
INTO_A_FOLDER = "run into another folder by tests/deploy/install_test.py"
MAKES_PACKAGES = "deploy/packages/build"
BLOCK = re.compile(r"(?:^ *<!-- (?P<how>.*?) -->\n)?^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
                   re.MULTILINE | re.DOTALL)
RAN = ("README.md", "deploy/two-machines.md")
PLACE = """
mount -t tmpfs none /run
ip link set lo up
ip link add eth0 type veth peer name eth1
ip address add 10.1.0.2/24 dev eth0
ip link set eth0 up
ip link set eth1 up
soon() {  # waits until the command succeeds
  for attempt in $(seq 900); do if "$@" >/dev/null 2>&1; then return 0; fi; sleep 0.1; done
  echo "never: $*" >&2; return 1
}
"""
SCRIPT = """import os
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29555", rank=int(sys.argv[1]), world_size=2)
model = torch.nn.Linear(300, 200)
if os.environ["WHERE"] != "README.md":  # its block is only the one line
    import cgx.torch
    parallel = DistributedDataParallel(model)
{block}
optimizer = torch.optim.SGD(parallel.parameters(), 0.1)
more = torch.ones(1)
while more.item():
    optimizer.zero_grad()
    parallel(torch.randn(8, 300)).square().mean().backward()
    optimizer.step()
    more.fill_(not os.path.exists("enough"))
    dist.broadcast(more, 0)
"""
TRAIN = """
for rank in 0 1; do /usr/bin/python3 train.py $rank & trainers="${trainers:-} $!"; done
training() { cgxctl -o json jobs | grep -q '"state": "running"'; }
soon training
"""
END = """
if [ -n "${trainers:-}" ]; then : >enough; for trainer in $trainers; do wait $trainer; done; fi
echo all of it worked
"""


class Block(NamedTuple):
    how: str
    language: str
    text: str


def documents():
    found = subprocess.run(["git", "ls-files", "README.md", "CONTRIBUTING.md", "deploy/*.md"], cwd=ROOT, capture_output=True,
                           text=True, check=True).stdout.split()
    return sorted(found)


def blocks(document):
    with open(os.path.join(ROOT, document), encoding="utf-8") as file:
        text = file.read()
    fences = len(re.findall(r"^ *```", text, re.MULTILINE))
    found = [Block(m["how"] or "", m["language"], textwrap.dedent(m["text"])) for m in BLOCK.finditer(text)]
    assert 2 * len(found) == fences, f"{document}: a block that is not closed, or not understood"
    return found


def programs(text):
    """First words of the commands."""
    lines = (line.split("#")[0].strip() for line in text.replace("\\\n", " ").splitlines())
    return {line.split()[0] for line in lines if line}


def commands_that(how):
    """The lines of all documents' blocks of that kind, without comments."""
    texts = [block.text for document in documents() for block in blocks(document) if block.how == how]
    lines = [line.split("  #")[0].strip() for text in texts for line in text.splitlines()]
    return [line for line in lines if line]


class Commands(unittest.TestCase):
    maxDiff = None

    def test_each_block_says_how_it_is_tried(self):
        for document in documents():
            for block in blocks(document):
                with self.subTest(document=document, block=block.text):
                    here = block.how in ("run", "run in the background", "checked")
                    there = block.how in (ELSEWHERE, ON_ONE, PACKAGES, INTO_A_FOLDER)
                    self.assertTrue(here or there or re.fullmatch(r"not run here: \S.{10,}", block.how), block.how)
                    self.assertTrue(not here or document in RAN, "documents whose blocks run stand in RAN")

    def test_packages_are_made_by_the_commands_that_are_shown(self):
        with open(os.path.join(ROOT, ".ci", "run"), encoding="utf-8") as file:
            stages = file.read()
        made = [line for line in commands_that(PACKAGES) if line.startswith(MAKES_PACKAGES)]
        self.assertGreaterEqual(len(made), 2)
        for line in made:
            self.assertIn(f"  {line} ", stages)

    def test_programs_of_the_tree_are_there(self):
        """Also of blocks that are not run."""
        for document in documents():
            for block in blocks(document):
                for program in programs(block.text) if block.language == "" else ():
                    if program.startswith(("deploy/", "tests/")):
                        self.assertTrue(os.access(os.path.join(ROOT, program), os.X_OK), f"{document}: {program}")

    def scene(self, document, folder):
        """The whole document as one shell script."""
        parts = ["set -eu", PLACE]
        for number, block in enumerate(blocks(document)):
            if block.how == "run" and block.language == "python":
                body = SCRIPT.replace("{block}", block.text)
                with open(os.path.join(folder, "train.py"), "w", encoding="utf-8") as file:
                    file.write(body)
                parts.append(TRAIN)
            elif block.how == "run":
                parts.append(block.text)
            elif block.how == "run in the background":
                parts.append(f"{{ {block.text.strip()}\n}} &")
            elif block.how == "checked":
                with open(os.path.join(folder, f"{number}.yaml"), "w", encoding="utf-8") as file:
                    file.write(block.text)
                parts.append(f"cgxd --check-config {number}.yaml")
            starts = block.how == "run in the background" or re.search(r"&(\s|$)", block.text) and block.how == "run"
            parts += ["soon cgxctl status"] if starts else []
        return "\n".join([*parts, END])

    def run_document(self, document):
        if os.geteuid() != 0:
            self.skipTest("needs root, for a machine of its own")
        if os.path.realpath(os.environ.get("CGX_BUILD_DIR", BUILD)) != os.path.realpath(BUILD):
            self.skipTest("the documents speak of build/release")
        folder = tempfile.mkdtemp(prefix="cgx-commands-")
        self.addCleanup(shutil.rmtree, folder)
        for name in ("build", "client", "deploy"):  # so that nothing is written into the tree
            os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))
        installed = {"PATH": os.path.join(BUILD, "bin") + ":" + os.environ["PATH"],
                     "PYTHONPATH": os.path.join(ROOT, "client", "python")}
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("CGX", "PYTHONPATH"))}
        environment.update({"WHERE": document}, **({} if document == "README.md" else installed))
        done = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "bash", "-c",
                               self.scene(document, folder)], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280)
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1:]), (0, ["all of it worked"]), done.stdout)
        return done.stdout

    def test_the_readme_works(self):
        said = self.run_document("README.md")
        for part in ("cgxd 0.", "would accept it", "takes effect at step", "the configuration"):
            self.assertIn(part, said)

    def test_two_machines_works(self):
        self.assertIn("network: [10.1.0.0/24]", self.run_document("deploy/two-machines.md"))


if __name__ == "__main__":
    unittest.main()

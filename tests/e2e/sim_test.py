"""cgxsim as README.md shows it: figures, pictures, files, and what it says of wrong ones."""

import glob
import json
import os
import re
import shlex
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("CGX_BUILD_DIR", os.path.join(ROOT, "build", "release"))
PROGRAM = os.path.join(BUILD, "bin", "cgxsim")


def cgxsim(*arguments, code=0, folder=None):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=300, cwd=folder)
    if done.returncode != code:
        raise AssertionError(f"cgxsim {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout if code == 0 else done.stderr


def runs(*arguments):
    return {each["policy"]: each for each in json.loads(cgxsim("--json", *arguments))["runs"]}


class Cgxsim(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="cgx-sim-")
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        return path

    def read(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as file:
            return file.read()

    def test_the_readmes_commands_work(self):
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
            commands = re.findall(r"^cgxsim (.*)$", file.read(), re.MULTILINE)
        self.assertEqual(len(commands), 2)
        said = [cgxsim(*shlex.split(command), folder=self.folder) for command in commands]
        self.assertIn("25,557,032 parameters in 161 tensors", said[0])
        self.assertIn("A model of time: nothing was measured.", said[0])
        self.assertRegex(said[0], r"(?m)^codec: maxmin:4  +[\d.]+ ms +[\d.]+ % .* MB .* ms +(?:engines|timeline) +\d+$")
        self.assertRegex(said[0], r"shortest: codec: maxmin:4; [\d.]+ times as fast as codec: fp32")
        self.assertIn("default, boundaries", said[1])
        events = json.loads(self.read("step.json"))["traceEvents"]
        self.assertEqual({e["args"]["name"] for e in events if e["name"] == "process_name"},
                         {"default", "default, boundaries", "codec: fp32", "codec: fp32, boundaries"})
        begun = sorted((e["pid"], e["id"]) for e in events if e["ph"] == "b")
        self.assertEqual(begun, sorted((e["pid"], e["id"]) for e in events if e["ph"] == "e"))
        picture = xml.etree.ElementTree.fromstring(self.read("step.svg"))
        bars = [e for e in picture.iter() if e.tag.endswith("rect") and list(e)]
        self.assertEqual(len(bars), sum(e["ph"] in "Xb" for e in events))

    def test_a_policy_may_be_long(self):
        rules = ", ".join(f"{{match: 'layer{number}[.]weight', codec: 'maxmin:4'}}" for number in range(20))
        said = cgxsim("-m", "resnet50", "-p", f"rules: [{rules}]", "-p", "codec: fp32")
        self.assertEqual(len(re.findall(r"(?m)^(?:rules|codec): .* [\d.]+ ms +[\d.]+ % .* MB .* ms +(?:engines|timeline) +\d+$", said)), 2, said)
        self.assertLess(max(map(len, said.split("\n")[4:7])), 200)

    def test_an_answer_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([PROGRAM, "--json"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual((done.returncode, done.stderr), (1, "cgxsim: cannot write the answer\n"))

    def test_figures_follow_what_is_asked(self):
        slow, fast = (runs("-m", "resnet50", "-n", "8", "--link", rate) for rate in ("1gbit", "100gbit"))
        self.assertLess(slow["default"]["step_ms"], slow["codec: fp32"]["step_ms"] / 4)
        self.assertLess(fast["codec: fp32"]["step_ms"], slow["codec: fp32"]["step_ms"] / 4)
        self.assertEqual(fast["codec: fp32"]["sent_bytes"], slow["codec: fp32"]["sent_bytes"])
        scalar = runs("-m", "resnet50", "-n", "8", "--link", "100gbit", "--lane", "scalar")
        self.assertGreater(scalar["default"]["daemon_ms"], 5 * fast["default"]["daemon_ms"])
        busy = runs("-m", "resnet50", "-n", "8", "--link", "100gbit", "--share", "1")
        self.assertGreater(busy["default"]["step_ms"], fast["default"]["step_ms"])

    def test_a_policy_may_be_a_file_with_rules(self):
        path = self.file("policy.yaml", "codec: fp32\nrules: [{match: layer4, codec: 'maxmin:4'}]\n")
        found = runs("-p", path, "-p", "codec: fp32", "-p", "codec: maxmin:4")
        self.assertLess(found["codec: maxmin:4"]["sent_bytes"], found[path]["sent_bytes"])
        self.assertLess(found[path]["sent_bytes"], found["codec: fp32"]["sent_bytes"])

    def test_a_planned_step_is_no_longer_than_the_fixed_one(self):
        found = runs("-m", "gpt2", "-n", "16", "--planner", "fixed", "--planner", "boundaries", "--core", "timeline")
        self.assertLessEqual(found["default, boundaries"]["step_ms"], 1.01 * found["default"]["step_ms"])
        self.assertEqual(found["codec: fp32, boundaries"]["sent_bytes"] > 4 * found["default"]["sent_bytes"], True)

    def test_a_mode_alone_is_a_policy(self):
        scene = ("-m", "resnet50", "-n", "8", "--core", "timeline")
        found = runs(*scene, "-p", "auto", "-p", "mode: auto", "-p", "merge", "-p", "fixed", "-p", "{}")
        self.assertEqual(list(found), ["auto", "mode: auto", "merge", "fixed", "default"])
        figures = {name: {key: value for key, value in run.items() if key != "policy"} for name, run in found.items()}
        self.assertEqual(figures["auto"], figures["mode: auto"])
        self.assertEqual(figures["fixed"], figures["default"])
        self.assertLess(found["auto"]["step_ms"], found["merge"]["step_ms"])
        self.assertLess(found["merge"]["step_ms"], found["fixed"]["step_ms"])
        self.assertLess(found["merge"]["sent_bytes"], 1.1 * found["fixed"]["sent_bytes"], "with the policy's codecs")
        self.assertIn("is neither keys (codec: maxmin:4), nor a file, nor a mode (fixed, auto, merge)",
                      cgxsim("-p", "atuo", code=1))

    def test_auto_prints_step_time_by_the_engines(self):
        said = cgxsim("--model", "resnet50", "--machines", "8", "--link", "25gbit", "--policy", "auto")
        self.assertRegex(said, r"(?m)^auto  +[\d.]+ ms +[\d.]+ % .* MB .* ms +engines +\d+$")

    def test_a_planner_that_is_named_goes_before_the_mode(self):
        scene = ("-m", "resnet50", "-n", "8", "--core", "timeline", "--json")
        done = subprocess.run([PROGRAM, *scene, "-p", "mode: auto", "--planner", "fixed", "--planner", "choose"],
                              capture_output=True, text=True, timeout=300, check=True)
        found = {run["policy"]: run for run in json.loads(done.stdout)["runs"]}
        self.assertEqual(list(found), ["mode: auto, fixed", "mode: auto"])
        self.assertEqual(found["mode: auto, fixed"]["step_ms"], runs(*scene[:-1])["default"]["step_ms"])
        self.assertEqual(done.stderr, "cgxsim: mode: auto: the policy says mode auto and --planner says fixed: "
                                      "--planner goes first\n")
        quiet = subprocess.run([PROGRAM, *scene, "-p", "codec: fp32", "--planner", "boundaries"],
                               capture_output=True, text=True, timeout=300, check=True)
        self.assertEqual(quiet.stderr, "", "a policy that says no mode contradicts nobody")

    def test_planners_choose_from_the_policys_menu(self):
        scene = ("-m", "vgg16", "-n", "4", "-l", "100gbit", "--lane", "scalar", "--share", "1", "--core", "timeline")
        menus = ("menu: ['maxmin:8']", "menu: [fp32]", "codec: 'maxmin:4,stochastic'")
        for how in (("-p", "mode: auto, %s"), ("--planner", "choose", "-p", "%s"), ("--planner", "boundaries", "-p", "%s")):
            with self.subTest(how=how):
                eight, exact, usual = (next(iter(runs(*scene, *how[:-1], "{" + how[-1] % menu + "}").values()))
                                       for menu in menus)
                self.assertGreater(eight["step_ms"], exact["step_ms"])
                self.assertLess(eight["sent_bytes"], exact["sent_bytes"])
                self.assertEqual(exact["sent_bytes"], usual["sent_bytes"])

    def test_what_cannot_be_measured_on_paper_is_said(self):
        done = subprocess.run([PROGRAM, "-p", "ceilings: layerwise", "--core", "timeline"],
                              capture_output=True, text=True, timeout=300, check=True)
        self.assertIn("ceilings layerwise needs gradients to measure", done.stderr)

    def test_the_engines_play_what_they_can_and_the_timeline_the_rest(self):
        scene = ("-m", "resnet50", "-n", "4", "-p", "codec: fp32")
        default, engines, timeline = (runs(*scene, *core)["codec: fp32"] for core in
                                      ((), ("--core", "engines"), ("--core", "timeline")))
        self.assertEqual(default, engines)
        self.assertEqual((engines["core"], timeline["core"]), ("engines", "timeline"))
        self.assertEqual(engines["timeline_ms"], timeline["step_ms"])
        self.assertNotEqual(engines["step_ms"], timeline["step_ms"])
        said = cgxsim(*scene)
        self.assertRegex(said, r"(?m)^codec: fp32 .* engines +\d+$")
        self.assertRegex(said, r"engines: cgxd's own, frame by frame in virtual time; the timeline says the same within \d+\.\d %")
        large = runs("-n", "65", "-p", "codec: fp32")["codec: fp32"]
        varies = runs("-n", "4", "-p", "codec: threshold:0.001")["codec: threshold:0.001"]
        self.assertEqual((large["core"], varies["core"]), ("timeline", "timeline"))

    def test_a_thousand_machines_take_seconds(self):
        found = runs("-m", "resnet50", "-n", "1024", "--link", "100gbit")
        self.assertLess(found["default"]["scaling"], 1)

    def test_a_model_may_be_a_file(self):
        path = self.file("model.txt", cgxsim("-m", "bert", "--print-model"))
        ours, built = runs("-m", path), runs("-m", "bert")
        self.assertEqual(ours["default"]["sent_bytes"], built["default"]["sent_bytes"])
        self.assertAlmostEqual(ours["default"]["step_ms"], built["default"]["step_ms"], delta=0.01)

    def test_wrong_input_is_named(self):
        negative = self.file("negative.txt", "tensor a 10x10 5us\ntensor b 10 -5us\n")
        empty = self.file("empty.txt", "model nothing\n")
        costs = self.file("costs.json", '[{"codec": "efsign", "lane": "avx2", "encode": 5, "decode": 5}]\n')
        for arguments, text in (
                (["-m", negative], f"{negative}:2: gap of b: \"-5us\" is not a time: it is negative"),
                (["-m", empty], f"{empty}: no tensors"),
                (["-m", "alexnet"], "no architecture \"alexnet\"; there are resnet50"),
                (["-l", "25"], "--link: \"25\" is not a rate such as 25gbit"),
                (["--latency", "5 years"], "--latency: \"5 years\" is not a time"),
                (["--lane", "neon"], "nothing of lane neon; it has avx512"),
                (["--costs", costs], "no cost of codec fp32; the table has efsign"),
                (["-p", "codex: fp32"], "no such key; did you mean codec?"),
                (["-p", "codec: maxmin:9"], "codec"),
                (["-p", "{collective: two_level, rack_machines: 3}", "-n", "8"], "rack_machines"),
                (["-n", "65", "--core", "engines"], "the engines play at most 64 machines, not 65"),
                (["--core", "engines", "-p", "codec: threshold:0.001"], "what it sends depends on values"),
                (["-n", "2", "--svg", os.path.join(self.folder, "no", "x.svg")], "cannot write")):
            with self.subTest(arguments=arguments):
                self.assertIn(text, cgxsim(*arguments, code=1))
        self.assertIn("--machines", cgxsim("-n", "0", code=2))
        self.assertIn("--planner", cgxsim("--planner", "auto", code=2))
        self.assertIn("--core", cgxsim("--core", "fast", code=2))
        self.assertIn("no option --polcy; did you mean --policy?", cgxsim("--polcy", "codec: fp32", code=2))

    def test_published_figures_are_within_the_tolerances_they_state(self):
        files = sorted(glob.glob(os.path.join(ROOT, "tests", "bench", "published", "*.txt")))
        rows = {}
        for path in files:
            rows.update({row["id"]: row for row in json.loads(cgxsim("--validate", path, "--json"))["rows"]})
        self.assertEqual([row["id"] for row in rows.values() if not row["holds"]], [])
        texts = [cgxsim("--validate", path) for path in files]
        self.assertTrue(any("calibrated: rate among 8" in text for text in texts))
        self.assertTrue(any("predicted: vgg16 with 4 bits" in text for text in texts))
        self.assertAlmostEqual(rows["qnccl/median"]["error"], 6.8, delta=0.1)
        self.assertEqual([name for name in rows if name.startswith("espresso/")],
                         [*(f"espresso/{model}/fp32" for model in ("bert", "lstm", "r101")), "espresso/gpt2/upper"])
        self.assertAlmostEqual(rows["mergecomp/r50/dgc/n8/ratio"]["ours"], 3.83, delta=0.15 * 3.83)
        wrong = self.file("rows.txt", "trainer resnet50 48ms 0.3\ncodec a plain\nscaling x a 8 two 1 1\n")
        self.assertIn("x is outside its tolerance", cgxsim("--validate", wrong, code=1))

    def test_no_grpc_is_linked(self):
        dynamic = subprocess.run(["readelf", "-dW", PROGRAM], capture_output=True, text=True, check=True).stdout
        self.assertIn("Shared library", dynamic)
        self.assertNotIn("grpc", dynamic)


if __name__ == "__main__":
    unittest.main()

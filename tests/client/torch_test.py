"""The DDP hook over a real cgxd: each test is a scenario of torch_ranks.py on processes of its own."""

import argparse
import contextlib
import multiprocessing
import os
import random
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import torch.distributed  # noqa: F401  once, for all ranks: they are forks
import torch.nn.parallel  # noqa: F401
import torch.profiler  # noqa: F401

with contextlib.suppress(ImportError):
    import torch._dynamo  # noqa: F401  2.x imports it for the first model of a process, which takes seconds

from private_daemon import BUILD, PrivateDaemon

import cgx.example
import cgx.torch
from cgx import _torch_ending, _torch_group, _torch_model

RANKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_ranks.py")
SECONDS = 100
FEEDBACK = ["--set", "policy.rules=[{match: fed, codec: 'maxmin:4,feedback', small: true}]"]  # where a scenario wants it


def free_port():
    """One that was free a moment ago, and none of those that the system gives to others."""
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


class Rank:
    """A fork of this process, which has imported torch, as the program of that command line."""

    def __init__(self, arguments, daemon):
        self.output = None
        self._output = tempfile.TemporaryFile("w+")
        self.process = multiprocessing.get_context("fork").Process(target=self._run, args=(arguments, daemon))
        self.process.start()

    def _run(self, arguments, daemon):
        for stream in (1, 2):
            os.dup2(self._output.fileno(), stream)
        os.environ.update(CGX_SOCKET=daemon.socket, CGX_BUILD_DIR=BUILD, OMP_NUM_THREADS="1",
                          CGX_TEST_DAEMON_PID=str(daemon.process.pid))
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(RANKS))
        sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1, closefd=False) for stream in (1, 2))
        runpy.run_path(RANKS, run_name="__main__")

    def wait(self, deadline):
        self.process.join(max(deadline - time.monotonic(), 0))
        return self.process.exitcode

    def end(self):
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.process.close()
        self._output.seek(0)
        self.output = self._output.read()
        self._output.close()


class Misuse(unittest.TestCase):
    """What is said before any rank waits for another; needs no daemon."""

    def test_register_wants_a_wrapped_model(self):
        with self.assertRaisesRegex(TypeError, "takes a DistributedDataParallel model, not Linear: wrap the model first"):
            cgx.torch.register(torch.nn.Linear(2, 2))

    def test_models_whose_gradients_come_in_no_buckets_are_refused_by_name(self):
        class Sharded(torch.nn.Module):
            def register_comm_hook(self, state, hook):
                raise AssertionError("the hook cannot serve this model")

        with self.assertRaisesRegex(TypeError, "DistributedDataParallel model, not Sharded: its gradients do not come in buckets"):
            cgx.torch.register(Sharded())
        for tensors in ([torch.zeros(3)], [torch.zeros(4), torch.zeros(2)]):  # FullyShardedDataParallel's: also with a shard
            with self.assertRaisesRegex(TypeError, "comm_hook takes buckets of DistributedDataParallel, not a Tensor"):
                cgx.torch.comm_hook(None, *tensors)
        with self.assertRaisesRegex(TypeError, "not single gradients: set torch._dynamo.config.optimize_ddp"):
            cgx.torch.comm_hook(None, (torch.zeros(3), torch.nn.Parameter(torch.zeros(3))))

    def test_wrong_options_are_named_at_once(self):
        for options, error, text in (({"timeout": -3}, ValueError, "a timeout of -3.0 s must not be negative"),
                                     ({"timeout": "ten"}, TypeError, "timeout 'ten' must be a number of seconds or a timedelta"),
                                     ({"gradient_unit": 0.5}, TypeError, "gradient_unit 0.5 must be a function")):
            with self.subTest(options), self.assertRaisesRegex(error, text):
                cgx.torch.HookState(**options)

    def test_the_example_names_options_that_do_not_fit(self):
        right = {"ranks": 2, "machines": 2, "machine": 1, "steps": 10, "leader": "10.1.0.2"}
        for wrong, text in (({}, None), ({"ranks": 0}, "--ranks 0 must be 1 or more"), ({"leader": None}, "needs --leader"),
                            ({"machine": 2}, "--machine 2 must be 0 to 1"), ({"machine": -1}, "--machine -1 must be")):
            said = []
            cgx.example.check(argparse.Namespace(**{**right, **wrong}), said.append)
            with self.subTest(wrong):
                self.assertEqual([text in each for each in said], [True] if text else [])


class Interface(unittest.TestCase):
    """That the example names to gloo."""

    ADDRESSES = """
ip link set lo up
for number in $(seq 1 200); do echo "address add 10.9.0.$number/24 dev lo"; done | ip -batch -
ip address add 10.9.1.1/24 dev lo label lo:second
exec "$0" -c 'import cgx.example
for host in ("127.0.0.1", "10.9.0.1", "10.9.0.200", "10.9.1.1", "10.20.0.1", "::1", "nowhere.invalid"):
    print(cgx.example.interface_towards(host))'
"""

    def test_of_any_of_its_addresses(self):
        """In a network of its own, in which nothing else is reached."""
        if shutil.which("unshare") is None or subprocess.run(["unshare", "-rn", "ip", "link"], capture_output=True).returncode != 0:
            self.skipTest("no network namespace can be made here")
        done = subprocess.run(["unshare", "-rn", "sh", "-c", self.ADDRESSES, sys.executable], capture_output=True, text=True)
        self.assertEqual(done.stdout.split(), ["lo"] * 4 + ["None"] * 3, done.stderr)

    def test_that_is_named_already_stays(self):
        with mock.patch.dict(os.environ, GLOO_SOCKET_IFNAME="mine"), \
             mock.patch.object(cgx.example, "interface_towards", side_effect=AssertionError("nobody wants to know")):
            cgx.example.name_interface("10.9.0.1")
            self.assertEqual(os.environ["GLOO_SOCKET_IFNAME"], "mine")

    def test_that_is_not_found_is_left_to_gloo(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("GLOO_SOCKET_IFNAME", None)
            cgx.example.name_interface("::1")
            self.assertNotIn("GLOO_SOCKET_IFNAME", os.environ)
            cgx.example.name_interface("127.0.0.1")
            self.assertEqual(os.environ["GLOO_SOCKET_IFNAME"], "lo")


class Compiled(torch.nn.Module):
    """As torch.compile makes them, which torch 1.13 lacks."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module


class Names(unittest.TestCase):
    def test_are_the_same_whether_a_module_is_compiled_or_not(self):
        compiled = getattr(torch, "compile", Compiled)
        net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
        wanted = ["0.weight", "0.bias", "1.weight", "1.bias"]
        self.assertEqual(list(_torch_model.names_of(net).values()), wanted)
        self.assertEqual(list(_torch_model.names_of(compiled(net)).values()), wanted)
        net[1] = compiled(net[1])
        self.assertEqual(list(_torch_model.names_of(compiled(net)).values()), wanted)

    def test_of_a_module_of_the_users_that_is_called_so_stay_apart(self):
        net = Compiled(torch.nn.Linear(2, 2))
        net.weight = torch.nn.Parameter(torch.zeros(2))
        self.assertEqual(list(_torch_model.names_of(net).values()), ["weight", "_orig_mod.weight", "_orig_mod.bias"])

    def test_that_the_user_gives_are_taken_as_they_are(self):
        net = torch.nn.Linear(2, 2)
        self.assertEqual(_torch_model.names_of(net, [("_orig_mod.mine", net.weight)]), {id(net.weight): "_orig_mod.mine"})


class Ending(unittest.TestCase):
    """Which states' ranks are told that this process ends; whether they hear it is the hook's tests' business."""

    def told(self, places, error, **environment):
        states = [mock.Mock(awaited_in=mock.Mock(side_effect=[place])) for place in places]
        with mock.patch.dict(os.environ, environment, clear=True), mock.patch.object(sys, "last_value", error, create=True), \
             mock.patch.object(_torch_ending, "dist"), mock.patch.object(_torch_ending, "default_store"), \
             mock.patch.object(_torch_ending, "tell_end") as tell_end:
            _torch_ending.tell_others(states)
        return [(*call.args[:2], str(call.args[2])) for call in tell_end.call_args_list]

    def test_all_that_are_awaited_hear_the_exception(self):
        said = "RANK_LOST: its process ended before its first backward pass was over: ValueError: no data"
        places = [("group", "a/0"), None, ValueError("the group was destroyed"), ("group", "b/0")]
        self.assertEqual(self.told(places, ValueError("no data")), [("group", "a/0", said), ("group", "b/0", said)])

    def test_an_end_in_order_tells_nothing(self):
        self.assertEqual(self.told([("group", "a/0")], None), [])

    def test_torchrun_ends_the_others_itself(self):
        """A word in its store would be heard by ranks that it starts again."""
        self.assertEqual(self.told([("group", "a/0")], ValueError("no data"), TORCHELASTIC_RUN_ID="none"), [])


class JobName(unittest.TestCase):
    def named(self, store="any", **environment):
        with mock.patch.dict(os.environ, environment, clear=True):
            return _torch_group._own_job(store)

    def test_launchers_name_it(self):
        port = {"MASTER_ADDR": "a", "MASTER_PORT": "1"}
        slurm = {"SLURM_JOB_ID": "17", "TORCHELASTIC_RUN_ID": "none"}
        for wanted, environment in (("mine", {"CGX_JOB": "mine", **port}), ("torch-a-1", port), ("slurm-17", slurm),
                                    ("torchrun-run", {"TORCHELASTIC_RUN_ID": "run", "SLURM_JOB_ID": "17"})):
            self.assertEqual(self.named(**environment), wanted)

    def test_runs_in_one_allocation_of_slurm_have_names_of_their_own(self):
        self.assertEqual(self.named(SLURM_JOB_ID="17", SLURM_STEP_ID="0"), "slurm-17.0")
        self.assertEqual(self.named(SLURM_JOB_ID="17", SLURM_STEP_ID="0", MASTER_PORT="29500"), "slurm-17.0-29500")

    def test_without_a_launcher_a_process_keeps_its_own_name(self):
        name = self.named()
        self.assertRegex(name, "^torch-[0-9a-f]{12}$")
        self.assertEqual(self.named(), name)
        self.assertEqual(self.named(store=None), "default")


class Hook(unittest.TestCase):
    def setUp(self):
        self.daemon = PrivateDaemon(arguments=FEEDBACK)
        self.addCleanup(self.daemon.stop)

    def run_ranks(self, scenario, size=2, killed=(), tcp=False, daemons=None):
        """daemons: of rank 0, 1, ... in turn; default the one of the test."""
        daemons = daemons or [self.daemon]
        port = [str(free_port())] if tcp else []
        with tempfile.TemporaryDirectory() as directory:
            ranks = [Rank([RANKS, scenario, str(rank), str(size), directory, *port],
                          daemons[rank % len(daemons)])
                     for rank in range(size)]
            try:
                deadline = time.monotonic() + SECONDS
                statuses = [rank.wait(deadline) for rank in ranks]
            finally:
                for rank in ranks:
                    rank.end()
        said = "\n".join(f"rank {number}: {status}\n{rank.output}"
                         for number, (rank, status) in enumerate(zip(ranks, statuses)))
        wrong = [status for number, status in enumerate(statuses) if status != 0 and number not in killed]
        self.assertEqual(wrong, [], f"{scenario}:\n{said}\n{self.daemon.log()}")
        return ranks

    def test_gradients_match_gloo_to_the_bit(self):
        self.run_ranks("matches_gloo")

    def test_gradients_match_gloo_with_bucket_views(self):
        self.run_ranks("matches_gloo_with_bucket_views")

    def test_unused_parameters_behave_as_with_gloo(self):
        self.run_ranks("unused_parameters")

    def test_several_models_train_side_by_side(self):
        self.run_ranks("several_models")

    def test_no_sync_accumulates_locally(self):
        self.run_ranks("no_sync_accumulates")

    def test_gradient_units_are_said_before_every_pass(self):
        self.run_ranks("gradient_unit")

    def test_error_feedback_forgets_passes_without_a_gradient_unit(self):
        self.run_ranks("gradient_unit_of_none")

    def test_what_is_no_gradient_unit_is_named(self):
        self.run_ranks("gradient_units_that_are_none")

    def test_channels_last_weights_keep_their_layout(self):
        self.run_ranks("channels_last")

    def test_process_groups_have_communicators_of_their_own(self):
        self.run_ranks("subgroup", size=3)

    def test_process_groups_that_share_a_name_do_not_meet(self):
        daemons = [PrivateDaemon() for _ in range(4)]
        for daemon in daemons:
            self.addCleanup(daemon.stop)
        for each in (daemons, daemons[:1]):
            self.run_ranks("groups_that_share_a_name", size=4, daemons=each)

    def test_one_rank_alone(self):
        self.run_ranks("matches_gloo", size=1)

    def test_half_types_are_averaged(self):
        self.run_ranks("half_types")

    def test_complex_gradients_are_averaged_whole(self):
        self.run_ranks("complex_gradients")

    @unittest.skipIf(torch.__version__ < "2", "DistributedDataParallel of torch 1.x takes no complex parameters")
    def test_complex_parameters_match_gloo_to_the_bit(self):
        self.run_ranks("complex_parameters")

    def test_parameters_may_have_many_dimensions(self):
        self.run_ranks("parameters_of_many_dimensions")

    def test_layers_that_do_not_fill_their_bucket_are_refused_by_name(self):
        self.run_ranks("layers_that_do_not_fill_their_bucket")

    def test_mixed_types_travel_in_one_pass(self):
        self.run_ranks("mixed_types_in_several_buckets")

    def test_the_first_pass_of_a_static_graph_ends_with_several_buckets(self):
        self.run_ranks("static_graph_with_several_buckets")

    def test_a_static_graph_whose_model_is_not_found_is_an_error_on_all_ranks(self):
        self.run_ranks("static_graph_whose_model_is_hidden")

    def test_buckets_may_be_empty(self):
        self.run_ranks("empty_buckets")

    def test_abandoned_pass_fails_everywhere_and_the_next_works(self):
        self.run_ranks("abandoned_pass_fails_everywhere_and_the_next_works")

    def test_dropped_steps_go_on(self):
        self.run_ranks("dropped_step")

    def test_state_survives_pickling(self):
        self.run_ranks("state_survives_pickling")

    def test_models_are_copied_with_a_session_of_their_states_own(self):
        self.run_ranks("models_are_copied_with_a_session_of_their_states_own")

    def test_models_that_differ_are_a_named_mismatch(self):
        self.run_ranks("disagreement_is_named")

    def test_backward_raises_when_the_daemon_dies(self):
        self.run_ranks("backward_raises_when_the_daemon_dies")

    def test_backward_raises_when_a_rank_dies(self):
        self.run_ranks("backward_raises_when_a_rank_dies", killed=[1])

    def test_pickled_states_keep_their_group_or_refuse(self):
        self.run_ranks("pickled_state_keeps_its_group", size=3)

    def test_fp16_wrapper_equals_gloo_in_it(self):
        self.run_ranks("fp16_wrapper")

    def test_bf16_wrapper_equals_gloo_in_it(self):
        self.run_ranks("bf16_wrapper")

    def test_a_buckets_type_counts_not_its_parameters(self):
        self.run_ranks("bucket_type_differs_from_its_parameters")

    def test_a_type_that_changes_is_refused_by_name(self):
        self.run_ranks("type_that_changes_is_refused")

    def test_machines_may_spell_the_masters_address_differently(self):
        self.run_ranks("spelled_differently")

    def test_ranks_meet_where_torch_has_no_store(self):
        self.run_ranks("without_a_store", size=3)

    def test_jobs_named_differently_by_hand_are_told(self):
        self.run_ranks("job_named_differently")

    def test_ranks_that_do_not_meet_are_named_in_time(self):
        self.run_ranks("extra_state_on_one_rank")

    def test_ranks_that_do_not_meet_are_named_in_time_over_tcp(self):
        self.run_ranks("extra_state_on_one_rank", tcp=True)

    def test_models_in_several_threads_do_not_hold_each_other_up(self):
        self.run_ranks("two_models_in_two_threads", tcp=True)

    def test_without_a_daemon_making_a_state_says_so(self):
        self.run_ranks("no_daemon")

    def test_the_hook_meets_again_after_the_daemon_was_started_anew(self):
        self.run_ranks("daemon_started_anew")

    def test_a_daemon_may_be_started_anew_before_the_first_pass(self):
        self.run_ranks("daemon_started_anew_before_the_first_pass")

    def test_models_meet_again_each_at_its_time_after_a_daemon_was_started_anew(self):
        daemons = [PrivateDaemon() for _ in range(2)]
        for daemon in daemons:
            self.addCleanup(daemon.stop)
        self.run_ranks("daemon_started_anew_on_one_machine", daemons=daemons)

    def on_two_machines(self, scenario):
        daemons = [PrivateDaemon() for _ in range(2)]
        for daemon in daemons:
            self.addCleanup(daemon.stop)
        self.run_ranks(scenario, daemons=daemons)

    def test_a_pass_that_one_rank_lacks_after_its_daemon_was_lost_is_an_error_on_all(self):
        self.on_two_machines("pass_that_one_rank_lacks_after_its_daemon_was_lost")

    def test_ranks_that_have_completed_the_same_passes_meet_again(self):
        self.on_two_machines("daemon_lost_behind_a_pass_that_all_have")

    def test_other_first_steps_are_a_lost_pass_also_without_a_store(self):
        self.run_ranks("mismatch_without_a_store", size=1)

    def test_what_ends_a_communicator_says_what_to_do(self):
        self.run_ranks("end_of_a_communicator_says_what_to_do")

    def test_the_hook_meets_again_after_a_worker_was_lost(self):
        self.run_ranks("worker_lost")

    def test_shutdown_goes_through_all_models(self):
        self.run_ranks("shutdown_goes_through_all")

    def test_a_state_may_be_made_again_where_it_could_not_be(self):
        self.run_ranks("state_made_again_where_it_could_not_be")

    def test_an_error_does_not_grow_with_each_bucket_that_it_fails(self):
        self.run_ranks("failed_pass_of_many_buckets")

    def test_two_jobs_without_a_launcher_train_at_once(self):
        self.run_ranks("two_jobs_at_once", size=4)

    def test_a_pass_whose_results_one_rank_lacks_is_an_error_while_all_live(self):
        self.run_ranks("pass_that_one_rank_lacks_while_all_live")

    def test_a_model_may_be_made_again_after_the_daemon_was_started_anew(self):
        self.run_ranks("model_made_again_after_the_daemon_was_started_anew")

    def test_one_line_hooks_a_model_under_its_names(self):
        self.run_ranks("hooked_in_one_line")

    def test_a_wrapper_that_forwards_to_a_compiled_model_is_hooked(self):
        self.run_ranks("wrapper_that_forwards_to_a_compiled_model")

    def test_models_hooked_without_a_state_have_one_each(self):
        self.run_ranks("states_without_a_name_are_each_models_own", size=3)

    def test_a_model_wrapped_again_over_other_ranks_is_averaged_over_those(self):
        self.run_ranks("model_wrapped_again_over_other_ranks", size=3)

    def test_a_model_wrapped_again_alike_goes_on_with_its_communicator(self):
        self.run_ranks("model_wrapped_again_alike")

    def test_a_model_wrapped_again_after_an_exception_in_backward_trains(self):
        self.run_ranks("model_wrapped_again_after_an_exception_in_backward")

    def test_a_model_wrapped_again_may_have_other_layers_frozen(self):
        self.run_ranks("model_wrapped_again_with_layers_unfrozen")

    def test_a_state_without_a_model_does_not_average_over_ranks_the_model_is_not_on(self):
        self.run_ranks("state_without_a_model_over_part_of_the_ranks", size=3)

    def test_models_that_share_layers_need_a_state_each(self):
        self.run_ranks("layers_that_two_models_share")

    def test_buckets_that_are_left_out_are_refused_by_name(self):
        self.run_ranks("buckets_that_are_left_out")

    def test_a_model_is_wrapped_again_by_the_ranks_that_live(self):
        self.run_ranks("model_wrapped_again_by_those_that_live", size=3, killed=[2])

    def test_models_that_gc_freeze_hides_are_said_to_be(self):
        self.run_ranks("models_hidden_by_gc_freeze")

    def test_a_bucket_of_no_model_needs_a_state(self):
        self.run_ranks("bucket_of_no_model")

    def test_sparse_gradients_are_reduced(self):
        self.run_ranks("sparse_gradients")

    def test_a_dropped_model_is_forgotten(self):
        self.run_ranks("dropped_model_is_forgotten")

    def test_torchs_profiler_shows_the_exchange(self):
        self.run_ranks("profiled")

    def test_results_that_are_not_finite_drop_the_step(self):
        self.run_ranks("results_that_are_not_finite_drop_the_step")

    def test_results_are_not_looked_at_without_error_feedback(self):
        self.run_ranks("results_are_not_looked_at_without_error_feedback")

    def test_shutdown_and_joining_again(self):
        self.run_ranks("shutdown_and_again")

    def test_shutdown_in_a_handler_of_signals_while_the_session_is_opened(self):
        self.run_ranks("shutdown_while_the_session_is_opened", size=1)

    def test_uneven_inputs_are_divided_as_with_gloo(self):
        self.run_ranks("uneven_inputs")

    def test_the_person_who_trains_is_told_what_joined_and_what_each_layer_costs(self):
        lossy = ["--set", "policy.codec=topk:0.01", "--set", "policy.stats_steps=1", "--set", "policy.min_elements=0",
                 "--set", "policy.rules=[{match: second, codec: maxmin:4, small: true}]"]
        daemons = [PrivateDaemon(arguments=lossy) for _ in range(2)]
        for daemon in daemons:
            self.addCleanup(daemon.stop)
        self.run_ranks("told", daemons=daemons)

    def test_the_line_at_the_start_counts_machines_and_their_ranks(self):
        daemons = [PrivateDaemon() for _ in range(2)]
        for daemon in daemons:
            self.addCleanup(daemon.stop)
        self.run_ranks("told_of_four", size=4, daemons=[daemons[0], daemons[0], daemons[1], daemons[1]])

    def test_the_line_at_the_start_says_what_has_become_of_error_feedback(self):
        feedback = ["--set", "policy.codec=maxmin:4,feedback", "--set", "policy.min_elements=0"]
        daemons = [PrivateDaemon(arguments=feedback) for _ in range(2)]
        for daemon in daemons:
            self.addCleanup(daemon.stop)
        self.run_ranks("told_of_feedback", daemons=daemons)

    def test_a_rank_that_does_not_come_is_named_while_the_others_wait(self):
        self.run_ranks("told_who_is_awaited", size=3, killed=[1])

    def test_a_process_that_ends_before_its_first_pass_is_named_at_once(self):
        """The script's own exception, in a process of multiprocessing's and in a program, which says what it was."""
        self.assertIn("rank 1 on ", self.run_ranks("told_that_a_process_ended", killed=[1])[0].output)
        environment = {**os.environ, "CGX_SOCKET": self.daemon.socket, "CGX_BUILD_DIR": BUILD}
        with tempfile.TemporaryDirectory() as directory:
            programs = [subprocess.Popen([sys.executable, RANKS, "told_that_a_process_ended", str(rank), "2", directory],
                                         env=environment, stdout=subprocess.PIPE, text=True) for rank in range(2)]
            said = [program.communicate(timeout=SECONDS)[0] for program in programs]
        self.assertEqual(programs[0].returncode, 0, said)
        self.assertRegex(said[0], "rank 1 on .* its process ended before its first backward pass was over: "
                                  "ValueError: the data has ended; make the process group anew")

    @unittest.skipIf(torch.__version__ < "2", "torch 1.x may end a process whose store has gone: a thread of its own throws")
    def test_the_death_of_rank_0_is_named_although_the_store_goes_with_it(self):
        self.run_ranks("told_that_rank_0_was_killed", killed=[0], tcp=True)

    def test_on_one_machine_the_line_says_that_nothing_is_sent(self):
        self.run_ranks("told_on_one_machine")

    def test_what_cannot_be_told_fails_no_pass(self):
        self.run_ranks("told_nothing")

    def test_a_later_daemon_may_report_more(self):
        self.run_ranks("report_of_a_later_daemon", size=1)

    def test_gradients_that_are_not_on_the_cpu_are_a_named_error_on_all_ranks(self):
        self.run_ranks("gradients_elsewhere_on_one_rank")

    def test_what_was_told_of_one_state_is_not_heard_by_the_next_one_of_its_name(self):
        self.run_ranks("failure_of_one_state_is_not_the_next_ones")

    def test_what_fails_on_one_rank_behind_the_meeting_is_told_to_all(self):
        self.run_ranks("arena_that_is_refused_to_one_rank")

    def test_what_fails_on_one_rank_while_it_joins_is_told_to_all_whatever_it_is(self):
        self.run_ranks("error_of_another_kind_while_joining")

    def test_a_rank_that_shuts_down_alone_does_not_break_the_process_group(self):
        self.run_ranks("rank_that_shuts_down_alone")

    def test_a_rank_without_a_daemon_is_named_to_all(self):
        self.run_ranks("no_daemon_on_one_rank")

    def test_an_error_before_the_first_pass_is_handed_over_fails_all_its_buckets(self):
        self.run_ranks("error_before_the_first_pass_is_handed_over")

    def test_an_error_of_one_pass_is_not_the_next_ones(self):
        self.run_ranks("error_of_one_pass_is_not_the_next_ones")

    def test_a_pass_that_fails_in_the_middle_is_redone(self):
        self.run_ranks("pass_that_fails_in_the_middle_is_redone")

    def test_what_has_failed_is_not_delivered(self):
        self.run_ranks("what_has_failed_is_not_delivered", size=1)

    def test_a_handler_of_signals_may_interrupt_the_hook_and_shut_down(self):
        self.run_ranks("nothing_waits_for_a_hook_that_a_handler_interrupts", size=1)

    def test_errors_keep_their_types(self):
        self.run_ranks("typed_errors")


if __name__ == "__main__":
    unittest.main()

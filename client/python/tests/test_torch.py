"""What is asked of PyTorch, against a module that stands in for it; and what is said where there is none."""

import math
import sys
import unittest
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import gpulease
from gpulease import NeedsPyTorch, Peak, TorchMemory

GIB = 1 << 30


class Stand:
    """As much of `torch` as is used, on a card of 8 GiB."""

    def __init__(self, sees_a_gpu=True, knows_fraction=True):
        self.calls, self.fraction = [], 1.0
        cuda = SimpleNamespace(
            is_available=lambda: sees_a_gpu,
            is_initialized=lambda: sees_a_gpu,
            current_device=lambda: 0,
            memory_allocated=lambda index: 3 * GIB,
            memory_reserved=lambda index: 4 * GIB,
            memory_stats=lambda index: {"inactive_split_bytes.all.current": GIB // 2},
            max_memory_allocated=lambda index: 5 * GIB,
            max_memory_reserved=lambda index: 6 * GIB,
            reset_peak_memory_stats=lambda index: self.calls.append(("reset", index)),
            empty_cache=lambda: self.calls.append(("empty",)),
            mem_get_info=lambda index: (GIB, 8 * GIB),
            set_per_process_memory_fraction=self.set_fraction,
        )
        if knows_fraction:
            cuda.get_per_process_memory_fraction = lambda index: self.fraction
        self.module = ModuleType("torch")
        self.module.cuda, self.module.__version__ = cuda, "2.11"
        self.module.device = lambda name: SimpleNamespace(index=int(str(name).partition(":")[2] or name))

    def set_fraction(self, fraction, index):
        self.calls.append(("fraction", fraction, index))
        self.fraction = fraction

    def __enter__(self):
        self.patched = patch.dict(sys.modules, {"torch": self.module})
        self.patched.start()
        return self

    def __exit__(self, *_):
        self.patched.stop()


class OverPyTorch(unittest.TestCase):
    def test_its_figures(self):
        with Stand() as stand:
            memory = TorchMemory("cuda:1")
            self.assertEqual(memory.index, 1)
            self.assertEqual((memory.allocated(), memory.reserved()), (3 * GIB, 4 * GIB))
            self.assertEqual(memory.fragmented(), GIB // 2)
            self.assertEqual(memory.peak(), Peak(5 * GIB, 6 * GIB))
            memory.reset_peak()
            memory.empty_cache()
            self.assertEqual(stand.calls, [("reset", 1), ("empty",)])

    def test_a_cap_is_a_share_of_the_card_and_is_taken_back(self):
        for knows in (True, False):
            with Stand(knows_fraction=knows) as stand:
                with self.assertRaises(KeyError), TorchMemory().capped(2 * GIB):
                    self.assertEqual(stand.fraction, 0.25)
                    raise KeyError
                self.assertEqual(stand.fraction, 1.0)

    def test_a_cap_of_the_user_s_own_is_not_widened(self):
        with Stand() as stand:
            stand.fraction = 0.125
            with TorchMemory().capped(2 * GIB):
                self.assertEqual(stand.fraction, 0.125)
            self.assertEqual(stand.fraction, 0.125)

    def test_the_report_is_about_it_where_it_uses_a_gpu(self):
        with Stand():
            self.assertEqual(gpulease.memory_report().framework.cached, GIB)
        with Stand(sees_a_gpu=False):
            self.assertIsNone(gpulease.memory_report().framework)


class WithoutPyTorch(unittest.TestCase):
    def calls(self):
        yield "find_batch_size", lambda: gpulease.find_batch_size(lambda batch: None)
        yield "estimate", lambda: gpulease.estimate(lambda batch: None)
        yield "LeakWatch", gpulease.LeakWatch
        yield "mem_pool", gpulease.mem_pool

    def test_each_says_that_it_needs_it(self):
        with patch.dict(sys.modules, {"torch": None}):
            for name, call in self.calls():
                with self.assertRaisesRegex(NeedsPyTorch, f"^{name} needs PyTorch, which .*install torch"):
                    call()

    def test_each_says_that_it_needs_a_gpu(self):
        with Stand(sees_a_gpu=False):
            for name, call in self.calls():
                with self.assertRaisesRegex(NeedsPyTorch, f"^{name} needs a GPU, and PyTorch 2.11 sees none"):
                    call()

    def test_a_wait_that_is_no_time_is_refused(self):
        for wait in (-1.0, math.nan):
            with self.assertRaisesRegex(ValueError, "a number of seconds"):
                gpulease.mem_pool(wait=wait)

    def test_a_callback_that_can_t_be_called_is_refused_at_once(self):
        for callback, why in ((7, "and not 7"), (lambda: None, "too many positional"), (lambda a, b: None, "missing")):
            with self.assertRaisesRegex(TypeError, f"one argument, the Recall, .*{why}"):
                gpulease.on_pressure(callback)

    def test_a_pytorch_without_pools_is_named(self):
        with Stand():
            with self.assertRaisesRegex(NeedsPyTorch, "needs PyTorch 2.5 or later, and this is 2.11"):
                gpulease.mem_pool()

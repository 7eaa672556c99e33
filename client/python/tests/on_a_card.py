"""The pool on a GPU, or on a driver that stands in for one: runs under `gpulease run --no-preload --device 1`, on a broker
of two devices. By a name of its own (`python -m unittest tests.on_a_card`), since it needs that."""

import os
import unittest

import gpulease
from gpulease import _native
from tests.test_in_a_lease import MIB, allocate, free


class Pool(unittest.TestCase):
    def test_memory_comes_from_the_card_of_the_lease_whatever_its_number_here(self):
        _native.open_pool()
        (device,) = gpulease.lease().devices
        self.assertEqual((device.kind, device.index), ("cuda", 1))
        self.assertEqual(os.environ["CUDA_VISIBLE_DEVICES"], device.uuid)
        address = allocate(3 * MIB, device=0)
        self.addCleanup(free, address)
        self.assertTrue(address, gpulease.pool_state())
        self.assertEqual(gpulease.lease().held, 4 * MIB)
        self.assertFalse(allocate(MIB, device=1))
        self.assertIn("device 1 of this process is none of the lease", gpulease.pool_state().trouble)
        free(address)
        self.assertEqual(gpulease.lease().held, 0)

    def test_field_12_the_context_is_a_line_of_its_own_beside_the_lease(self):
        # pytorch#58466: a cap of a process ignored its context and libraries. Here the whole lease is for data, and what
        # the context takes is charged beside it.
        _native.open_pool()
        ours = gpulease.lease()
        address = allocate(ours.limit)
        self.addCleanup(free, address)
        self.assertTrue(address, gpulease.pool_state())
        full = gpulease.lease()
        self.assertEqual((full.held, full.room), (ours.limit, 0))
        self.assertGreaterEqual(full.overhead_here, 64 * MIB)
        (device,) = full.devices
        self.assertEqual(device.capacity, device.free + full.limit + full.overhead, "the broker charges both")
        self.assertRegex(str(gpulease.memory_report()), "context and libraries, beside that +[0-9.]+ MiB")

    def test_the_lease_is_pinned_from_then_on(self):
        self.assertTrue(_suspendable_before)
        _native.open_pool()
        self.assertFalse(gpulease.lease().suspendable)


class Preloaded(unittest.TestCase):
    """Without `--no-preload`."""

    def test_a_lease_that_is_listened_in_stays_where_it_is(self):
        self.assertIn("libgpulease_preload", os.environ["LD_PRELOAD"])
        self.assertTrue(_suspendable_before)
        with gpulease.on_pressure():
            self.assertFalse(gpulease.lease().suspendable)


_suspendable_before = gpulease.lease().suspendable

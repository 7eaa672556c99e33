import unittest

from gpulease import NothingFits, estimate
from gpulease.sizes import GRANULARITY

from tests.fake import FakeMemory
from tests.trainer import MIB, Trainer


class Estimates(unittest.TestCase):
    def test_what_it_says_of_a_large_batch_is_what_that_takes(self):
        memory = FakeMemory(1 << 40)
        trainer = Trainer(memory, update=0)
        said = estimate(trainer.step, (1, 2, 4), memory=memory)
        self.assertAlmostEqual(said.error, 0.0)
        self.assertAlmostEqual(said.per_sample, 4 * MIB, places=3)
        self.assertEqual(said.peak(64), (4 * 64 + 64 * 4) * MIB)
        memory.reset_peak()
        trainer.step(64)
        self.assertEqual(memory.peak().reserved, said.peak(64))
        self.assertEqual(said.largest_batch(said.peak(64), margin=0.0), 64)

    def test_the_lease_has_a_margin_and_whole_units(self):
        said = estimate(Trainer(memory := FakeMemory(1 << 40), update=0).step, (1, 2, 4), memory=memory)
        asked = said.lease_for(64, margin=0.1)
        self.assertEqual(asked % GRANULARITY, 0)
        self.assertGreaterEqual(asked, said.peak(64) * 1.1)
        self.assertLess(asked, said.peak(64) * 1.1 + 2 * GRANULARITY)
        self.assertEqual(said.command(64), f"gpulease run -m {asked // MIB}MiB -- python ...")

    def test_what_is_no_line_is_told_and_counts_as_margin(self):
        memory = FakeMemory(1 << 40)

        def step(batch):
            return memory.block(batch**3 * MIB)

        said = estimate(step, (1, 2, 4), memory=memory)
        self.assertGreater(said.error, 0.2)
        self.assertGreater(said.lease_for(4, margin=0.0), 64 * MIB)

    def test_one_size_says_nothing_of_another(self):
        said = estimate(Trainer(memory := FakeMemory(1 << 40)).step, (2,), memory=memory)
        self.assertEqual(said.peak(2), said.trials[0].peak.reserved)
        with self.assertRaisesRegex(ValueError, "two or more"):
            said.peak(3)

    def test_sizes_that_do_not_fit_are_left_out(self):
        memory = FakeMemory(300 * MIB)
        said = estimate(Trainer(memory, update=0).step, (1, 2, 400), memory=memory)
        self.assertEqual([trial.fits for trial in said.trials], [True, True, False])
        self.assertAlmostEqual(said.per_sample, 4 * MIB, places=3)
        with self.assertRaisesRegex(NothingFits, "not even a batch of 400"):
            estimate(lambda batch: memory.block(batch * MIB), (400,), memory=memory)

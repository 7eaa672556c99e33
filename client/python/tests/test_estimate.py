import os
import random
import unittest

from gpulease import NothingFits, estimate
from gpulease.sizes import GRANULARITY

from tests.fake import FakeMemory
from tests.surroundings import without_a_lease
from tests.trainer import MIB, Trainer

#: What PyTorch takes from the device at once for small tensors.
GRAIN = 20 * MIB
#: How many models each property is tried with.
SEEDS = int(os.environ.get("GPULEASE_TEST_SEEDS", "12"))


class Phases:
    """Steps of several phases, of which each takes so many bytes, and so many more for each sample, and lets them go."""

    def __init__(self, memory, *phases, weights=0):
        self.memory, self.phases = memory, phases
        self.weights = memory.block(weights)
        self.batches = []

    def step(self, batch):
        self.batches.append(batch)
        for fixed, each in self.phases:
            block = self.memory.block(fixed + each * batch)
            assert block
            del block

    def takes(self, batch):
        """By arithmetic, before the device rounds it."""
        return self.memory.live + max(fixed + each * batch for fixed, each in self.phases)


def phases(lots, memory):
    """As training has them: one that no batch changes, or nearly, one of the gradients, and one that grows."""
    weights, each = lots.randrange(50, 500) * MIB, lots.randrange(5, 200) * MIB
    small = lots.choice([0, each // 20, each // 4])
    return Phases(
        memory, (lots.randrange(0, 10) * weights, small), (weights, each // 2 - 1), (0, each), weights=weights
    )


class Estimates(unittest.TestCase):
    @without_a_lease
    def test_what_it_says_of_a_large_batch_is_what_that_takes(self):
        memory = FakeMemory(1 << 40)
        trainer = Trainer(memory, each=30 * MIB, backward_each=10 * MIB, update=0)
        said = estimate(trainer.step, (1, 2, 4), memory=memory)
        self.assertTrue(said.settled)
        self.assertEqual(said.error, 20 / 320, "the last 8 samples took 320 MiB more, and a block is of 20")
        self.assertEqual(said.per_sample, 40 * MIB)
        self.assertEqual(said.peak(500), (40 * 500 + 64 * 4) * MIB)
        memory.reset_peak()
        trainer.step(500)
        self.assertEqual(memory.peak().reserved, said.peak(500))
        self.assertEqual(
            str(said),
            "256 MiB for the model and 40 MiB for each sample (measured with 1, 2, 4, 8, 16 samples, within 6%)",
        )

    @without_a_lease
    def test_an_optimizer_s_temporaries_do_not_hide_what_samples_take(self):
        # On a card with PyTorch 2.11: three batches of a transformer under AdamW took the same, and a line through them
        # said two thirds of what 32 samples took.
        memory = FakeMemory(1 << 40)
        trainer = Phases(memory, (1700 * MIB, MIB), (650 * MIB, 110 * MIB), weights=300 * MIB)
        said = estimate(trainer.step, (2, 4, 8), memory=memory)
        self.assertTrue(said.settled)
        for batch in (3, 10, 32, 100, 1000):
            self.assertGreaterEqual(said.peak(batch), trainer.takes(batch), batch)
        self.assertEqual(said.peak(1000), trainer.takes(1000))
        self.assertEqual(max(trainer.batches), 64, "doubled as far as it takes, and no further")

    @without_a_lease
    def test_a_lease_is_enough_and_not_far_too_much_whatever_the_allocator_rounds(self):
        settled = 0
        for seed in range(SEEDS):
            lots = random.Random(seed)
            memory = FakeMemory(1 << 44, grain=GRAIN)
            trainer = phases(lots, memory)
            said = estimate(trainer.step, lots.choice([(1, 2, 4), (2, 4, 8), (3,), (1, 7)]), memory=memory)
            settled += said.settled
            measured = {trial.batch_size: trial.peak.reserved for trial in said.trials}
            for batch in [*measured, *(lots.randrange(1, 4 * max(measured)) for _ in range(10)), 16 * max(measured)]:
                takes = trainer.takes(batch)
                self.assertGreaterEqual(said.peak(batch), measured.get(batch, 0), (seed, batch))
                self.assertGreaterEqual(said.peak(batch) * (1 + said.error), takes, (seed, batch))
                self.assertGreaterEqual(said.lease_for(batch), takes, (seed, batch))
                if batch >= min(measured) and said.settled:
                    self.assertLess(said.lease_for(batch, margin=0.0), takes * 1.3 + 2 * GRAIN, (seed, batch))
        self.assertGreater(settled, SEEDS * 9 // 10)

    @without_a_lease
    def test_where_the_rise_is_not_steady_yet_it_is_enough_all_the_same(self):
        for seed in range(SEEDS):
            lots = random.Random(seed)
            memory = FakeMemory(1 << 44, grain=GRAIN)
            trainer = phases(lots, memory)
            said = estimate(trainer.step, (1, 2), up_to=lots.randrange(2, 9), memory=memory)
            self.assertLessEqual(max(trainer.batches), 8)
            for batch in (3, 17, 64, 1000):
                takes = trainer.takes(batch)
                self.assertGreaterEqual(said.lease_for(batch), takes, (seed, batch))
                if not said.settled:
                    self.assertGreaterEqual(said.peak(batch), takes, (seed, batch))
                    self.assertIn("more were not allowed, and the rise was not steady yet", str(said))

    def test_no_more_is_taken_than_its_budget(self):
        memory = FakeMemory(1 << 40)
        trainer = Phases(memory, (400 * MIB, 0), (0, 30 * MIB), weights=100 * MIB)
        said = estimate(trainer.step, (1, 2, 4), budget=700 * MIB, memory=memory)
        self.assertEqual((said.limited_by, said.settled), ("memory", False))
        self.assertLessEqual(memory.most_taken, 700 * MIB)
        self.assertEqual([(trial.batch_size, trial.fits) for trial in said.trials][-2:], [(16, True), (32, False)])
        self.assertGreaterEqual(said.peak(20), trainer.takes(20))
        self.assertGreaterEqual(said.peak(100), trainer.takes(100))
        self.assertIn("32 do not fit, and the rise was not steady yet", str(said))

    @without_a_lease
    def test_what_grows_with_all_pairs_of_samples_is_told_from_a_line(self):
        memory = FakeMemory(1 << 50)

        def step(batch):
            block = memory.block((300 + 100 * batch + 20 * batch**2) * MIB)
            assert block

        said = estimate(step, (1, 2, 4), up_to=64, memory=memory)
        self.assertEqual((said.power, said.settled), (2, False))
        self.assertGreaterEqual(said.peak(1000), (300 + 100 * 1000 + 20 * 1000**2) * MIB)
        self.assertIn("times the batch for each sample", str(said))

    @without_a_lease
    def test_the_lease_has_a_margin_and_whole_units(self):
        said = estimate(Trainer(memory := FakeMemory(1 << 40), update=0).step, (1, 2, 4), memory=memory)
        asked = said.lease_for(64, margin=0.1)
        self.assertEqual(asked % GRANULARITY, 0)
        self.assertGreaterEqual(asked, said.peak(64) * (1.1 + said.error))
        self.assertLess(asked, said.peak(64) * (1.1 + said.error) + 2 * GRANULARITY)
        self.assertEqual(said.command(64), f"gpulease run -m {asked // MIB}MiB -- python ...")

    @without_a_lease
    def test_the_largest_batch_is_the_last_whose_lease_fits(self):
        for seed in range(SEEDS):
            lots = random.Random(seed)
            memory = FakeMemory(1 << 44, grain=GRAIN)
            said = estimate(phases(lots, memory).step, (2, 4), up_to=lots.choice([4, 4096]), memory=memory)
            budget = lots.randrange(1, 30000) * GRANULARITY
            batch = said.largest_batch(budget)
            self.assertTrue(batch == 0 or said.lease_for(batch) <= budget, (seed, batch))
            self.assertGreater(said.lease_for(batch + 1), budget, (seed, batch))

    @without_a_lease
    def test_what_a_larger_batch_took_less_of_by_chance_lowers_no_lease(self):
        memory = FakeMemory(1 << 40)
        took = {1: 500 * MIB, 2: 900 * MIB, 4: 700 * MIB}
        said = estimate(lambda batch: memory.block(took[batch]) and None, (1, 2, 4), up_to=4, memory=memory)
        self.assertEqual(said.peak(4), 700 * MIB)
        self.assertGreaterEqual(said.lease_for(4), 900 * MIB)
        self.assertGreaterEqual(said.peak(5), 900 * MIB)

    @without_a_lease
    def test_of_two_slopes_that_agree_the_steeper_one_goes_on(self):
        memory = FakeMemory(1 << 40)
        took = {8: 1000 * MIB, 16: 1800 * MIB, 32: 3320 * MIB}
        said = estimate(lambda batch: memory.block(took[batch]) and None, tuple(took), memory=memory)
        self.assertTrue(said.settled)
        self.assertEqual(said.peak(132), (3320 + 100 * 100) * MIB)
        self.assertAlmostEqual(said.error, 5 / 100 + 20 / 1600)

    @without_a_lease
    def test_a_large_frozen_model_does_not_count_as_growing(self):
        memory, model = FakeMemory(1 << 40), {}
        model["frozen"] = memory.block(20000 * MIB)

        def step(batch):
            model["adapter"] = model.get("adapter") or memory.block(40 * MIB)
            activations = memory.block(50 * MIB * batch)
            del activations

        said = estimate(step, (1, 2), up_to=2, memory=memory)
        self.assertFalse(said.settled)
        self.assertLess(said.peak(100), (20000 + 100 * 100) * MIB)

    @without_a_lease
    def test_a_block_more_by_chance_is_no_square(self):
        memory = FakeMemory(1 << 40, grain=GRAIN)
        model = memory.block(11 * MIB)

        def step(batch):
            block = memory.block(8 * MIB + batch * MIB)
            assert block and model

        said = estimate(step, (1, 2), up_to=2, memory=memory)
        self.assertEqual([trial.peak.reserved for trial in said.trials], [GRAIN, 2 * GRAIN])
        self.assertEqual(said.power, 1)

    @without_a_lease
    def test_gradients_that_a_step_drops_first_are_no_part_of_the_floor(self):
        memory, model = FakeMemory(1 << 40), {}
        model["weights"], model["gradients"] = memory.block(500 * MIB), memory.block(500 * MIB)

        def step(batch):
            model["gradients"] = None
            activations = memory.block(60 * MIB * batch)
            del activations
            model["gradients"] = memory.block(500 * MIB)

        said = estimate(step, (1, 2, 4), up_to=8, memory=memory)
        self.assertFalse(said.settled)
        self.assertGreaterEqual(said.peak(100), (500 + 60 * 100) * MIB)

    @without_a_lease
    def test_steps_that_take_the_same_with_any_batch_are_told(self):
        memory = FakeMemory(1 << 40)
        kept = memory.block(64 * MIB)
        said = estimate(lambda batch: None, (1, 2, 4), memory=memory)
        self.assertFalse(said.settled)
        self.assertEqual(max(trial.batch_size for trial in said.trials), 256)
        with self.assertRaisesRegex(ValueError, "the same with each batch size"):
            estimate(lambda batch: None, (1,), memory=FakeMemory(1 << 40)).largest_batch(1 << 30)
        assert kept

    @without_a_lease
    def test_sizes_beyond_one_that_does_not_fit_are_not_tried(self):
        memory = FakeMemory(2000 * MIB)
        trainer = Trainer(memory, update=0)
        said = estimate(trainer.step, (1, 2, 900, 1000), memory=memory)
        tried = [(trial.batch_size, trial.fits) for trial in said.trials]
        self.assertEqual(tried[:2] + tried[-1:], [(1, True), (2, True), (900, False)])
        self.assertAlmostEqual(said.per_sample, 4 * MIB, places=3)
        flat = Phases(FakeMemory(600 * MIB), (500 * MIB, 0), (0, 9 * MIB))
        said = estimate(flat.step, (1, 2, 90), memory=flat.memory)
        self.assertEqual(max(flat.batches), 90)
        self.assertEqual(
            (said.limited_by, max(trial.batch_size for trial in said.trials if trial.fits)), ("memory", 64)
        )
        with self.assertRaisesRegex(NothingFits, "not even a batch of 4000"):
            estimate(lambda batch: memory.block(batch * MIB), (4000,), memory=memory)

    def test_nonsense_is_refused(self):
        memory = FakeMemory(1 << 40)
        for sizes, options in (((), {}), ((0, 1), {}), ((4,), {"up_to": 3}), ((4,), {"repeat": 0})):
            with self.assertRaises(ValueError):
                estimate(lambda batch: None, sizes, memory=memory, budget=1 << 30, **options)
        with self.assertRaisesRegex(ValueError, "at least 1"):
            estimate(lambda batch: None, (1,), memory=memory, budget=1 << 30).peak(0)

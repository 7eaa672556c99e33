import random
import unittest

from gpulease import NothingFits, accumulation, find_batch_size
from gpulease.batch_size import largest
from gpulease.trial import attempt

from tests.fake import FakeMemory, FakeOutOfMemory
from tests.surroundings import without_a_lease
from tests.trainer import MIB, Trainer


def search(trainer, budget, low=1, high=512, **options):
    return find_batch_size(trainer.step, low, high, memory=trainer.memory, budget=budget, margin=0.0, **options)


class Search(unittest.TestCase):
    def test_finds_what_arithmetic_finds(self):
        lots = random.Random(7)
        for _ in range(10):
            memory = FakeMemory(1 << 40)
            trainer = Trainer(
                memory,
                weights=lots.randrange(1, 64) * MIB,
                each=lots.randrange(1, 9) * MIB,
                backward_each=lots.randrange(0, 9) * MIB,
                update=lots.randrange(0, 200) * MIB,
            )
            budget = trainer.size * 4 + lots.randrange(200, 3000) * MIB
            fitting = [batch for batch in range(1, 301) if trainer.fits(batch, budget)]
            found = search(trainer, budget, high=300)
            self.assertEqual(found.batch_size, max(fitting))
            self.assertEqual(found.limited_by, "high" if max(fitting) == 300 else "memory")
            self.assertLessEqual(found.peak, budget)

    def test_never_takes_more_than_its_budget_from_the_device(self):
        memory = FakeMemory(1 << 40)
        trainer = Trainer(memory)
        found = search(trainer, 777 * MIB)
        self.assertGreater(max(trainer.batches), found.batch_size, "a size beyond was tried")
        self.assertLessEqual(memory.most_taken, 777 * MIB)

    def test_a_margin_stays_free(self):
        found = find_batch_size(
            Trainer(memory := FakeMemory(1 << 40)).step, 1, 512, memory=memory, budget=1000 * MIB, margin=0.1
        )
        self.assertEqual(found.budget, 900 * MIB)
        self.assertLessEqual(memory.most_taken, 900 * MIB)

    def test_the_second_step_counts(self):
        def of(repeat):
            return search(Trainer(FakeMemory(1 << 40), update=0), 777 * MIB, repeat=repeat, low=150, high=150)

        # In the first step the optimizer has no state yet when the activations are at their most.
        self.assertEqual(of(1).batch_size, 150)
        with self.assertRaises(NothingFits):
            of(2)

    def test_no_size_is_tried_twice_and_few_are(self):
        trainer = Trainer(FakeMemory(1 << 40))
        found = search(trainer, 900 * MIB, repeat=1)
        self.assertEqual(len(trainer.batches), len(set(trainer.batches)))
        self.assertLessEqual(len(found.trials), 18)

    def test_only_multiples(self):
        trainer = Trainer(FakeMemory(1 << 40))
        found = search(trainer, 900 * MIB, multiple_of=8)
        self.assertEqual(found.batch_size, (900 - 256) // 4 // 8 * 8)
        self.assertTrue(all(batch % 8 == 0 for batch in trainer.batches))

    def test_largest_is_exact_at_every_edge(self):
        for low in range(1, 9):
            for high in range(low, 40):
                for edge in range(0, 45):
                    best = largest(lambda batch: batch <= edge, low, high)
                    self.assertEqual(best, None if edge < low else min(edge, high), (low, high, edge))

    def test_nothing_fits_says_why(self):
        trainer = Trainer(FakeMemory(1 << 40))
        with self.assertRaisesRegex(NothingFits, "not even a batch of 4 fits 100 MiB: CUDA out of memory") as raised:
            search(trainer, 100 * MIB, low=4)
        self.assertEqual(len(raised.exception.trials), 1)

    def test_nonsense_is_refused(self):
        for options in (
            {"low": 0},
            {"low": 9, "high": 8},
            {"multiple_of": 0},
            {"low": 9, "high": 15, "multiple_of": 8},
        ):
            with self.assertRaises(ValueError):
                search(Trainer(FakeMemory(1 << 40)), 900 * MIB, **options)

    @without_a_lease
    def test_outside_of_a_lease_a_budget_has_to_be_named(self):
        memory = FakeMemory(1 << 40)
        with self.assertRaisesRegex(Exception, "GPULEASE_LEASE is not set.*budget="):
            find_batch_size(Trainer(memory).step, 1, 8, memory=memory)


class OutOfMemoryInEachPhase(unittest.TestCase):
    """Whatever runs out, the search goes on, and nothing of the failed step stays."""

    def check(self, phase, budget, **sizes):
        memory = FakeMemory(1 << 40)
        trainer = Trainer(memory, **sizes)
        found = search(trainer, budget * MIB, repeat=1, reset=lambda: setattr(trainer, "gradients", None))
        failed = [trial for trial in found.trials if not trial.fits]
        self.assertIn(f"in {phase}", failed[0].where)
        self.assertIn("Tried to allocate", failed[0].why)
        kept = trainer.size * (1 + len(trainer.state))
        self.assertEqual(memory.live, kept)
        self.assertEqual({block.kind for block in memory.blocks}, {"weights", "state"})
        self.assertEqual(found.left_by_failed, 0)
        return found

    def test_forward(self):
        self.check("forward", 512, backward_each=0, update=0)

    def test_backward(self):
        self.check("backward", 512, each=1, backward_each=8 * MIB, update=0)

    def test_optimizer(self):
        memory = FakeMemory(1 << 40)
        trainer = Trainer(memory, each=1, backward_each=1, update=400 * MIB)
        with self.assertRaises(NothingFits) as raised:
            search(trainer, 500 * MIB)
        self.assertIn("in update", raised.exception.trials[0].where)
        self.assertEqual({block.kind for block in memory.blocks}, {"weights", "gradients", "state"})

    def test_the_place_is_in_the_program_and_not_in_a_library(self):
        # Of what was compiled from Cython a traceback has the name of the source, in no folder.
        for file in ("cupy/cuda/memory.pyx", "/env/lib/python3.12/site-packages/cupy/_core.py"):
            library = {}
            exec(compile("def malloc(error):\n    raise error", file, "exec"), library)

            def allocating(batch, malloc=library["malloc"]):
                malloc(FakeOutOfMemory("out of memory"))

            memory = FakeMemory(1 << 20)
            trial = attempt(memory, allocating, 1)
            self.assertRegex(trial.where, r"test_batch_size\.py:\d+ in allocating$")

    def test_what_hides_in_the_frames_of_errors_that_are_kept_goes_too(self):
        memory, log = FakeMemory(512 * MIB), []

        def inner(batch):
            first = memory.block(batch * MIB, "first")
            memory.block(512 * MIB, "second")
            return first

        def step(batch):
            mine = memory.block(batch * MIB, "mine")
            try:
                inner(batch)
            except RuntimeError as error:
                log.append(type(error)("CUDA out of memory in a kernel of ours"))
                raise log[-1] from error
            return mine

        with self.assertRaises(NothingFits):
            find_batch_size(step, 1, 8, memory=memory, budget=400 * MIB)
        self.assertEqual(len(log), 1)
        self.assertEqual(memory.live, 0)

    def test_what_a_failed_step_leaves_for_good_is_told(self):
        memory, kept = FakeMemory(1 << 40), []

        def step(batch):
            block = memory.block(batch * MIB)
            if batch > 4:
                kept.append(block)
                memory.block(1 << 39)

        found = find_batch_size(step, 1, 8, memory=memory, budget=100 * MIB)
        self.assertEqual(found.batch_size, 4)
        self.assertEqual(found.left_by_failed, 8 * MIB)

    def test_a_misspelt_limit_is_not_taken_for_the_larger_one(self):
        with self.assertRaisesRegex(ValueError, """within is "reserve" or "limit", not 'reserved'"""):
            find_batch_size(lambda batch: None, memory=FakeMemory(1 << 30), budget=1 << 20, within="reserved")

    def test_another_error_goes_through(self):
        def step(batch):
            raise KeyError("labels")

        with self.assertRaises(KeyError):
            find_batch_size(step, 1, 8, memory=FakeMemory(1 << 30), budget=1 << 20)


class Accumulate(unittest.TestCase):
    def test_keeps_the_batch_in_the_fewest_pieces(self):
        for effective in range(1, 200):
            for most in range(1, 40):
                pieces = accumulation(effective, most)
                self.assertEqual(pieces.effective, effective)
                self.assertEqual(pieces.steps, -(-effective // most))
                self.assertLessEqual(max(pieces.sizes), most)
                self.assertLessEqual(max(pieces.sizes) - min(pieces.sizes), 1)
                self.assertAlmostEqual(sum(pieces.weights), 1.0)

    def test_weighted_means_are_the_mean(self):
        samples = [float(number * number) for number in range(10)]
        mean, at = 0.0, 0
        pieces = accumulation(len(samples), 4)
        for size, weight in zip(pieces.sizes, pieces.weights):
            mean += weight * sum(samples[at : at + size]) / size
            at += size
        self.assertAlmostEqual(mean, sum(samples) / len(samples))

    def test_nonsense_is_refused(self):
        with self.assertRaises(ValueError):
            accumulation(0, 4)

import random
import unittest
import warnings

from gpulease import LeakWarning, LeakWatch

from tests.fake import FakeMemory

MIB = 1 << 20


class Levels:
    """A memory that has these bytes in use, one after the other."""

    name = "levels"

    def __init__(self, levels):
        self.levels = iter(levels)

    def allocated(self):
        return next(self.levels)


def watch(levels, **options):
    """The watch after it has seen all of them, with the leaks that it told."""
    told = []
    seen = LeakWatch(Levels(levels), on_leak=told.append, **options)
    for _ in levels:
        seen.step()
    return told


class Leaks(unittest.TestCase):
    def test_the_step_since_which_it_grows(self):
        for begin in (1, 2, 17, 500):
            levels = [100 * MIB] * begin + [100 * MIB + n * MIB for n in range(1, 60)]
            (leak,) = watch(levels)
            self.assertEqual(leak.since, begin + 1)
            self.assertLessEqual(leak.noticed, begin + 20)
            self.assertEqual(leak.per_step, MIB)

    def test_once_in_every_ten_steps(self):
        levels = [(100 + n // 10) * MIB for n in range(300)]
        (leak,) = watch([100 * MIB] * 45 + levels)
        self.assertEqual(leak.since, 45 + 11)
        self.assertEqual(leak.noticed, 45 + 161, "at the sixteenth growth")
        self.assertAlmostEqual(leak.per_step, MIB / 10, delta=MIB / 40)

    def test_under_noise(self):
        lots = random.Random(3)
        steady = [100 * MIB + lots.randrange(8) * MIB for _ in range(300)]
        growing = [(100 + n) * MIB + lots.randrange(8) * MIB for n in range(300)]
        (leak,) = watch(steady + growing)
        self.assertIn(leak.since, range(280, 340))

    def test_small_ones_in_the_end(self):
        (leak,) = watch([MIB + n * 512 for n in range(2500)])
        self.assertEqual(leak.since, 2)
        self.assertGreaterEqual(leak.grown, MIB)

    def test_after_a_warm_up(self):
        levels = [10 * MIB, 50 * MIB, 80 * MIB] + [90 * MIB] * 200 + [90 * MIB + n * MIB for n in range(1, 30)]
        (leak,) = watch(levels)
        self.assertEqual(leak.since, 204)


class NoLeaks(unittest.TestCase):
    def test_the_same_every_step(self):
        self.assertEqual(watch([100 * MIB] * 2000), [])

    def test_a_level_that_is_reached_and_kept(self):
        levels = [n * MIB for n in range(6)] + [100 * MIB] * 500 + [200 * MIB] * 500 + [300 * MIB] * 500
        self.assertEqual(watch(levels), [])

    def test_noise(self):
        for seed in range(20):
            lots = random.Random(seed)
            self.assertEqual(watch([100 * MIB + lots.randrange(50) * MIB for _ in range(800)]), [], seed)

    def test_a_saw(self):
        for period in (2, 7, 16):
            self.assertEqual(watch([(100 + n % period) * MIB for n in range(700)]), [], period)

    def test_no_more_than_has_gone_away_before(self):
        swings = [100 * MIB, 150 * MIB] * 4
        self.assertEqual(watch(swings + [(100 + n % 50) * MIB for n in range(700)]), [])
        self.assertEqual(len(watch(swings + [(100 + n) * MIB for n in range(300)])), 1)

    def test_less_than_matters(self):
        self.assertEqual(watch([MIB + n * 512 for n in range(1500)]), [])


class Told(unittest.TestCase):
    def test_as_a_warning_once(self):
        seen = LeakWatch(Levels([n * MIB for n in range(100)]))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(100):
                seen.step()
        self.assertEqual([each.category for each in caught], [LeakWarning])
        self.assertIn("memory grows since step 2: ", str(caught[0].message))
        self.assertEqual(caught[0].filename, __file__)
        self.assertEqual(seen.leak.since, 2)

    def test_with_what_became_more(self):
        memory, kept, told = FakeMemory(1 << 40), [], []
        watching = LeakWatch(memory, on_leak=told.append)
        weights = memory.block(64 * MIB, "weights")
        for n in range(60):
            work = memory.block(8 * MIB, "work")
            if n >= 20:
                kept.append(memory.block(MIB, "scalar float32, with the graph that computed it"))
            del work
            watching.step()
        (leak,) = told
        self.assertEqual(leak.since, 21)
        ((kind, count),) = leak.kinds
        self.assertTrue(kind.startswith("scalar"))
        self.assertGreaterEqual(count, 3)
        self.assertIn("loss.item()", str(leak))
        self.assertTrue(weights)

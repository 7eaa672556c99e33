import os
import unittest
from unittest.mock import patch

from gpulease import MemoryReport, lease, memory_report, text, why_no_lease
from gpulease.sizes import argument, read, rounded_up

from tests.fake import FakeMemory
from tests.surroundings import without_a_lease

MIB = 1 << 20


class Sizes(unittest.TestCase):
    def test_as_people_read_them(self):
        for size, written in (
            (0, "0 B"),
            (1, "1 B"),
            (2 * MIB, "2 MiB"),
            (1536 * MIB, "1.5 GiB"),
            (143771 * MIB, "140.4 GiB"),
            (-3 * MIB, "-3 MiB"),
        ):
            self.assertEqual(text(size), written)

    def test_as_an_argument_they_are_no_smaller(self):
        self.assertEqual(argument(5 * MIB), "5MiB")
        self.assertEqual(argument(5 * MIB + 1), "6MiB")

    def test_whole_units(self):
        self.assertEqual([rounded_up(size) for size in (0, 1, 2 * MIB, 2 * MIB + 0.5)], [0, 2 * MIB, 2 * MIB, 4 * MIB])

    def test_read_from_a_message(self):
        said = "Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 8.00 GiB of which 512.00 MiB is free."
        self.assertEqual(read(said, "ried to allocate"), 2560 * MIB)
        self.assertEqual(read(said, "of which"), 512 * MIB)
        self.assertIsNone(read(said, "nothing of the kind"))
        self.assertIsNone(read("Tried to allocate much", "allocate"))


class OutsideOfALease(unittest.TestCase):
    @without_a_lease
    def test_there_is_none_and_it_says_why(self):
        self.assertIsNone(lease())
        self.assertIn("GPULEASE_LEASE is not set", why_no_lease())
        self.assertIn("gpulease run", why_no_lease())

    @without_a_lease
    def test_a_number_that_is_none_is_named(self):
        for given in ("seven", "-7", "", "７"):
            with patch.dict(os.environ, {"GPULEASE_LEASE": given}):
                self.assertIsNone(lease())
                self.assertIn(repr(given), why_no_lease())

    @without_a_lease
    def test_the_report_says_so_and_shows_the_framework(self):
        memory = FakeMemory(1 << 40)
        block = memory.block(300 * MIB)
        memory.block(200 * MIB)
        memory.pinned_down = 50 * MIB
        report = memory_report(memory)
        self.assertIsInstance(report, MemoryReport)
        self.assertIsNone(report.lease)
        self.assertIsNone(report.elsewhere)
        rows = {row.strip().split("  ")[0]: row.split() for row in str(report).splitlines() if row.startswith("  ")}
        self.assertEqual(rows["allocated"][1:], ["300", "MiB", "peak", "500", "MiB"])
        self.assertEqual(rows["cached"][1:], ["200", "MiB"])
        self.assertEqual(rows["of that fragmented"][-2:], ["50", "MiB"])
        self.assertIn("GPULEASE_LEASE is not set", str(report))
        self.assertTrue(block)

    @without_a_lease
    def test_without_any_framework_it_says_so(self):
        self.assertIn("no PyTorch that uses a GPU", str(memory_report()))

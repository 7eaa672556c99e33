"""How many steps a job makes."""

import time

#: The clock is looked at after so many, so that the device is not waited for at each.
TOGETHER = 50


def paced(steps):
    """Numbers of steps: so many, or those of so many seconds (`6s`); then it says how many they were."""
    if not steps.endswith("s"):
        yield from range(int(steps))
        return
    end, number = time.monotonic() + float(steps[:-1]), 0
    while number % TOGETHER or time.monotonic() < end:
        yield number
        number += 1
    print(f"note steps={number}")

#!/usr/bin/env python3
"""Programs that nobody changes, bare and under `gpulease run`, on a GPU: `frameworks.py LOGS [PART]...`.

A part is `cases`, `speed`, `turns` or `cards`; `cases:NAME` and `turns:NAME` are one row of it, and `cases:jax*` some. It
starts brokers of its own, prints a table for each part, and fails where a promise was broken:
- cases: the same results to the last bit (or within what two bare runs differ by), the lease seen as the card's total,
  the framework's own exception over budget, and memory that is the broker's: what the card lists for the process is a
  context and no more, while its lease holds gigabytes.
- speed: steps a second in turns of a second, a second bare process beside to show the noise.
- turns: two jobs that want 1.5 times the capacity, with the same last digits as alone, and with nothing in use of the card,
  by its own figure, that is not in the broker's books.
- cards: NCCL between two cards and copies from one to the other; needs two.
"""

import concurrent.futures
import ctypes
import fnmatch
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
LEASE = 6 << 30
# A context and the libraries' own code in each process; leased memory is not in it.
OWN_AT_MOST = 1500 << 20
PROCESSES = {"torch workers": 3}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
ASYNC = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
# The broker sees a context that grows within a second; what is in no book for longer is memory of somebody's own.
UNBOOKED_SECONDS = 3
# Steps of the driver, and what a context has that is listed for nobody.
UNBOOKED_AT_MOST = 64 << 20
# What each program holds at least while it sleeps at its end.
HELD_AT_LEAST = 512 << 20
# XLA chooses its kernels by timing them, so that bare runs differ; without that they are equal to the last bit.
XLA = {"XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true"}
JAX_BARE = {"BARE_XLA_PYTHON_CLIENT_MEM_FRACTION": "0.04"}
CASES = [
    # name, program and words, variables, of which those that start with BARE_ are for the bare run alone
    ("torch", "torch_cases.py transformer", {}),
    ("torch expandable", "torch_cases.py transformer", EXPANDABLE),
    ("torch async", "torch_cases.py transformer", ASYNC),
    ("torch graph", "torch_cases.py graph", {}),
    ("torch graph expandable", "torch_cases.py graph", EXPANDABLE),
    ("torch graph async", "torch_cases.py graph", ASYNC),
    ("torch compiled", "torch_cases.py compiled", {}),
    ("torch cudnn", "torch_cases.py cudnn", {}),
    ("torch loader", "torch_cases.py loader", {}),
    ("torch forked", "torch_cases.py forked", {}),
    ("torch workers", "torch_cases.py workers", {}),
    ("torch nccl", "torch_cases.py nccl", {}),
    ("torch amp", "torch_cases.py amp", {}),
    ("torch over", "torch_cases.py over_budget", {}),
    ("torch over expandable", "torch_cases.py over_budget", EXPANDABLE),
    ("torch over async", "torch_cases.py over_budget", ASYNC),
    ("jax", "jax_cases.py train", {**XLA, **JAX_BARE}),
    ("jax autotuned", "jax_cases.py train", JAX_BARE),
    ("jax platform", "jax_cases.py train", {**XLA, "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
    ("jax over", "jax_cases.py over_budget", {**XLA, **JAX_BARE}),
    ("jax over platform", "jax_cases.py over_budget", {**XLA, "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
    ("cupy", "cupy_cases.py default", {}),
    ("cupy async", "cupy_cases.py async", {}),
    # CUDA's own runtime library, in the program and beside it.
    ("runtime static", "runtime.cu static", {}),
    ("runtime shared", "runtime.cu shared", {}),
]
TURNS = [
    # name, program, what comes after its steps, GiB of data, steps, variables; all in leases of 12 GiB
    ("torch", "torch_turns.py", [], 10, "2500", {}),
    ("torch expandable", "torch_turns.py", [], 10, "2500", EXPANDABLE),
    ("torch async", "torch_turns.py", [], 10, "2500", ASYNC),
    # JAX takes three quarters of what it sees.
    ("jax", "jax_turns.py", [], 7, "8s", XLA),
    ("jax platform", "jax_turns.py", [], 9, "8s", {**XLA, "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
    ("cupy", "cupy_turns.py", [], 10, "8s", {}),
    ("cupy async", "cupy_turns.py", ["async"], 10, "8s", {}),
]


class Broker:
    """A broker of its own; `with` stops it."""

    def __init__(self, logs, name, capacity, configuration="", devices=("cuda:0",)):
        self.folder = tempfile.TemporaryDirectory(prefix="gpulease-frameworks-")
        os.chmod(self.folder.name, 0o700)
        self.socket = f"{self.folder.name}/gpulease.sock"
        config = Path(self.folder.name, "gpuleased.toml")
        config.write_text(configuration)
        self.log = open(logs / f"{name}-broker.log", "w")
        words = [HERE / "gpuleased", "--capacity", f"{capacity}B", "--socket", self.socket, "--config", config]
        words += [word for device in devices for word in ("--device", device)]
        self.process = subprocess.Popen(words, stderr=self.log, stdout=self.log)
        deadline = time.monotonic() + 30
        while not self.state():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the broker is not ready; see {self.log.name}")
            time.sleep(0.1)

    def environment(self):
        return {**os.environ, "GPULEASE_SOCKET": self.socket}

    def state(self):
        asked = subprocess.run([HERE / "gpulease", "--json", "status"], env=self.environment(), capture_output=True)
        return json.loads(asked.stdout) if asked.returncode == 0 else None

    def run(self, name, memory, command, *options):
        words = [HERE / "gpulease", "run", "-m", f"{memory}B", "-n", name.replace(" ", "-"), *options]
        return [*words, "--", *command]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)
        self.log.close()
        self.folder.cleanup()


class Watch(threading.Thread):
    """The most that each lease held, and that the card listed for its processes beside it."""

    def __init__(self, broker):
        super().__init__(daemon=True)
        self.broker, self.held, self.own, self.over = broker, {}, {}, threading.Event()

    def run(self):
        while not self.over.wait(0.3):
            for lease in (self.broker.state() or {}).get("leases", []):
                name = lease["name"]
                self.held[name] = max(self.held.get(name, 0), lease["held_bytes"])
                self.own[name] = max(self.own.get(name, 0), lease["overhead_bytes"] or 0)


class CardMemory(ctypes.Structure):
    """`nvmlMemory_v2_t`"""

    _fields_ = [("version", ctypes.c_uint)] + [(name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")]


class Card:
    """What is used of the first card, by its own figure."""

    def __init__(self):
        self.nvml, self.device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        self.check(self.nvml.nvmlInit_v2())
        self.check(self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)))

    def check(self, code):
        if code:
            sys.exit(f"NVML fails with {code}")

    def used(self):
        memory = CardMemory(version=ctypes.sizeof(CardMemory) | 2 << 24)
        self.check(self.nvml.nvmlDeviceGetMemoryInfo_v2(self.device, ctypes.byref(memory)))
        return memory.used


class Books(threading.Thread):
    """How much more the card has in use than the broker's books say, while nobody else uses the card."""

    def __init__(self, broker):
        super().__init__(daemon=True)
        self.broker, self.card, self.over, self.seen = broker, Card(), threading.Event(), []
        self.before = self.card.used()

    def run(self):
        while not self.over.wait(0.2):
            used = self.card.used()
            state = self.broker.state()
            device = state and state["devices"][0]
            # Else something moved meanwhile, or somebody else uses the card, whose memory is in other books.
            if device and not device["strangers"] and used == self.card.used():
                memory = device["memory"]
                booked = sum(memory[f"{kind}_bytes"] for kind in ("held", "overhead", "draining", "quarantined"))
                self.seen.append((time.monotonic(), used - self.before - booked))

    def unbooked(self):
        """The most that was in no book for some seconds on end; `None` where it was never looked at for so long."""
        self.over.set()
        self.join()
        lasting = []
        for number, (start, _) in enumerate(self.seen):
            span = [more for at, more in self.seen[number:] if at <= start + UNBOOKED_SECONDS]
            if self.seen[-1][0] >= start + UNBOOKED_SECONDS and len(span) > 2:
                lasting.append(min(span))
        return max(lasting, default=None)


def named(rows, wanted):
    found = [row for row in rows if fnmatch.fnmatch(row[0], wanted)]
    return found or sys.exit(f"there is no {wanted}; there are {', '.join(row[0] for row in rows)}")


def results(output):
    return [line for line in output.splitlines() if line.startswith("result ")]


def spread(one, other):
    """The largest relative difference of the numbers in two outputs; infinite where they are not of one shape."""
    def numbers(lines):
        return [float.fromhex(n) for line in lines for n in re.findall(r"-?0x[0-9a-f.]+p[+-]?\d+", line)]
    a, b = numbers(one), numbers(other)
    if len(a) != len(b) or not a:
        return float("inf")
    return max(abs(x - y) / max(abs(x), abs(y), 1e-30) for x, y in zip(a, b))


def call(words, environment, log, timeout=150):
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as late:
        log.write_text(f"{late}\n{late.stdout}\n{late.stderr}")
        return 124, ""
    log.write_text(f"{done.stdout}\n--- stderr\n{done.stderr}\n--- exit {done.returncode}\n")
    return done.returncode, done.stdout


def command(logs, program):
    """How it is started; built first, where it has to be. `None` where it can't be built here."""
    name, *words = program.split()
    if not name.endswith(".cu"):
        return [sys.executable, str(PROGRAMS / name), *words]
    compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(compiler):
        return None
    built = logs / f"{name}-{words[0]}"
    subprocess.run([compiler, f"-cudart={words[0]}", "-o", built, PROGRAMS / name], check=True)
    return [str(built.resolve())]


def one_case(broker, logs, name, program, variables):
    words = command(logs, program)
    if words is None:
        return name, "not run: no nvcc", ""
    plain = {key: value for key, value in variables.items() if not key.startswith("BARE_")}
    bare = {**os.environ, **plain}
    bare |= {key.removeprefix("BARE_"): value for key, value in variables.items() if key.startswith("BARE_")}
    file = name.replace(" ", "-")
    with concurrent.futures.ThreadPoolExecutor(max_workers=1 if fills_the_card(variables) else 2) as pool:
        first = pool.submit(call, words, bare, logs / f"{file}-bare.log")
        under = {**broker.environment(), **plain}
        leased = pool.submit(call, broker.run(name, LEASE, words), under, logs / f"{file}-leased.log")
    (bare_code, bare_out), (code, out) = first.result(), leased.result()
    if code or bare_code:
        return name, f"exit {code} (bare {bare_code})", out
    expected, found = results(bare_out), results(out)
    if any("over=none" in line for line in found):
        return name, "NO REFUSAL over budget", out
    if expected == found:
        return name, "equal", out
    again = [call(words, bare, logs / f"{file}-bare-again-{number}.log") for number in range(2)]
    noise, difference = max(spread(expected, results(out)) for _, out in again), spread(expected, found)
    if not any(code for code, _ in again) and 0 < noise < float("inf") and difference <= 4 * noise:
        return name, f"within the spread of bare runs ({difference:.1e}, {noise:.1e})", out
    return name, f"DIFFERS ({difference:.1e}; bare runs {noise:.1e})", out


def fills_the_card(variables):
    """Whether the bare program, told to take more than there is, takes piece by piece what there is: nobody else may run then."""
    return EXPANDABLE.items() <= variables.items()


def cases(logs, wanted):
    broken = 0
    chosen = named(CASES, wanted)
    with Broker(logs, "cases", 64 << 30) as broker:
        watch = Watch(broker)
        watch.start()
        with concurrent.futures.ThreadPoolExecutor(max_workers=6) as pool:
            beside = [case for case in chosen if not fills_the_card(case[2])]
            done = list(pool.map(lambda case: one_case(broker, logs, *case), beside))
        done += [one_case(broker, logs, *case) for case in chosen if fills_the_card(case[2])]
        watch.over.set()
        watch.join()
    print(f"\n{'program':24} {'results':44} {'total seen':>11} {'held':>9} {'its own':>9}")
    for name, verdict, out in done:
        seen = re.search(r"(?:total_bytes|bytes_limit)=(\d+)", out)
        key = name.replace(" ", "-")
        held, own = watch.held.get(key, 0), watch.own.get(key, 0)
        total = int(seen[1]) if seen else 0
        if verdict.startswith("not run"):
            print(f"{name:24} {verdict}")
            continue
        wrong = not (verdict == "equal" or verdict.startswith("within"))
        wrong |= total > LEASE or held < HELD_AT_LEAST or own > OWN_AT_MOST * PROCESSES.get(name, 1)
        broken += wrong
        figures = " ".join(f"{value / 2**20:7.0f} M" for value in (total, held, own))
        print(f"{name:24} {verdict:44} {figures}  {'BROKEN' if wrong else ''}")
    return broken


class Runner:
    """A process of `torch_speed.py` that works when it is told to."""

    def __init__(self, words, environment, log):
        self.process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )

    def ready(self):
        line = self.process.stdout.readline()
        if line.strip() != "ready":
            sys.exit(f"a program did not start: {line!r}")

    def rate(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)


def speed(logs, _, rounds=12, seconds=0.8):
    broken = 0
    print(f"\nsteps a second, medians of {rounds} turns of {seconds} s")
    print(f"{'program':14} {'bare':>9} {'leased':>9} {'ratio':>7} {'bare to bare':>13}")
    for kind, least in (("transformer", 0.99), ("small", 0.98)):
        words = [sys.executable, str(PROGRAMS / "torch_speed.py"), kind]
        with Broker(logs, f"speed-{kind}", 20 << 30) as broker, open(logs / f"speed-{kind}.log", "w") as log:
            runners = [
                Runner(words, os.environ, log),
                Runner(broker.run(kind, 12 << 30, words), broker.environment(), log),
                Runner(words, os.environ, log),
            ]
            for runner in runners:
                runner.ready()
            rows = []
            for number in range(rounds):
                row = [0.0] * 3
                for index in [(number + k) % 3 for k in range(3)]:
                    row[index] = runners[index].rate(seconds)
                rows.append(row)
            for runner in runners:
                runner.end()
        bare, leased, other = (statistics.median(column) for column in zip(*rows))
        ratio = statistics.median(row[1] / row[0] for row in rows)
        noise = [row[2] / row[0] for row in rows]
        noise_ratio = statistics.median(noise)
        allowed = min(least, min(noise)) if kind == "small" else least
        print(f"{kind:14} {bare:9.1f} {leased:9.1f} {ratio:7.3f} {noise_ratio:7.3f} ({min(noise):.3f}..{max(noise):.3f})")
        broken += ratio < allowed
    return broken


def turns(logs, wanted):
    """Two jobs of 12 GiB in 16 GiB and what their contexts take.

    Field case 34 (vllm-project/vllm#28714): memory was unmapped while work was in flight. Here jobs are suspended in the
    middle of kernels and of replays of graphs, and every byte is as without."""
    print("\ntwo jobs that want 1.5 times the capacity")
    return sum(take_turns(logs, *row) for row in named(TURNS, wanted))


def take_turns(logs, name, program, more, gib, steps, variables):
    context = 640 << 20
    configuration = (
        f'arena = "26GiB"\npinned_max = "{2 * context}B"\nswap_rate = "30GB"\n'
        '[graces]\nmax_wait = "2s"\nmin_residency = "2s"\nidle_after = "10s"\ndrain = "5s"\n'
    )
    file = f"turns-{name.replace(' ', '-')}"
    with Broker(logs, file, (16 << 30) + 2 * context, configuration) as broker:
        books = Books(broker)
        books.start()

        def job(kind, seed, steps):
            words = [sys.executable, str(PROGRAMS / program), str(seed), str(gib), steps, *more]
            under = {**broker.environment(), **variables}
            start = time.monotonic()
            log = logs / f"{file}-{kind}-{seed}.log"
            code, out = call(broker.run(f"{kind} {seed}", 12 << 30, words), under, log, 200)
            return code, out, time.monotonic() - start

        alone = [job("alone", seed, steps) for seed in (1, 2)]
        # Who was given seconds made so many steps.
        made = [re.search(r"note steps=(\d+)", out) for _, out, _ in alone]
        made = [found[1] if found else steps for found in made]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            together = list(pool.map(lambda seed: job("together", seed, made[seed - 1]), (1, 2)))
        events = subprocess.run(
            [HERE / "gpulease", "--json", "events"], env=broker.environment(), capture_output=True, text=True
        ).stdout
        unbooked = books.unbooked()
    suspensions = len(re.findall(r'"kind"\s*:\s*"suspended"', events))
    broken = suspensions < 2
    for seed, number, one, other in zip((1, 2), made, alone, together):
        same = one[0] == other[0] == 0 and results(one[1]) and results(one[1]) == results(other[1])
        broken += not same
        print(
            f"{name:18} job {seed}: {number} steps, alone {one[2]:.1f} s, together {other[2]:.1f} s, "
            f"exits {one[0]} and {other[0]}: {'equal' if same else 'DIFFERS'}"
        )
    print(f"{name:18} suspensions: {suspensions}{'' if suspensions >= 2 else '  BROKEN'}", flush=True)
    strange = (unbooked or 0) > UNBOOKED_AT_MOST
    broken += strange
    figure = "not seen, since others used the card" if unbooked is None else f"{unbooked / 2**20:.0f} MiB at most"
    print(f"{name:18} in use of the card and in no book: {figure}{'  BROKEN' if strange else ''}", flush=True)
    return broken


def cards(logs, _):
    """Two cards: one lease on both, a lease on each for each rank, and a process that copies from one to the other."""
    print("\nprograms on two cards")
    program = [sys.executable, str(PROGRAMS / "torch_cards.py")]
    broken = 0
    with Broker(logs, "cards", 32 << 30, devices=("cuda:0", "cuda:1")) as broker, tempfile.TemporaryDirectory() as meeting:
        watch = Watch(broker)
        watch.start()

        def run(name, words, *options):
            bare = not options
            words = [*program, *words] if bare else broker.run(name, LEASE, [*program, *words], *options)
            return call(words, os.environ if bare else broker.environment(), logs / f"cards-{name}.log")

        def ranks(kind, options):
            with concurrent.futures.ThreadPoolExecutor() as pool:
                words = [["rank", str(rank), f"{meeting}/{kind}"] for rank in range(2)]
                return list(pool.map(lambda rank: run(f"{kind}-{rank}", words[rank], *options(rank)), range(2)))

        bare = {"together": [run("together-bare", ["together", f"{meeting}/bare"])]}
        bare["ranks"] = ranks("ranks-bare", lambda rank: [])
        bare["copies"] = [run("copies-bare", ["copies"])]
        leased = {"together": [run("together", ["together", f"{meeting}/together"], "--gpus", "2")]}
        leased["ranks"] = ranks("ranks", lambda rank: ["--device", str(rank)])
        leased["copies"] = [run("copies", ["copies"], "--gpus", "2")]
        watch.over.set()
        watch.join()
    for name, done in leased.items():
        codes = [code for code, _ in [*bare[name], *done]]
        found, expected = ([results(out) for _, out in runs] for runs in (done, bare[name]))
        same = not any(codes) and all(found) and found == expected
        held = [bytes_ for lease, bytes_ in watch.held.items() if lease.startswith(name)]
        own = [bytes_ for lease, bytes_ in watch.own.items() if lease.startswith(name)]
        # Each rank's data are there twice: on one card in its own lease, on two in the lease of both.
        wrong = not same or sum(held) < 2 * HELD_AT_LEAST
        broken += wrong
        figures = " ".join(f"{sum(values) / 2**20:7.0f} M" for values in (held, own))
        word = "equal" if same else f"DIFFERS, exits {codes}"
        print(f"{name:24} {word:44} held and its own {figures}  {'BROKEN' if wrong else ''}", flush=True)
    return broken


def main(logs, parts):
    logs = Path(logs)
    logs.mkdir(parents=True, exist_ok=True)
    known = {"cases": cases, "speed": speed, "turns": turns, "cards": cards}
    # Most machines have one card.
    chosen = [part.partition(":") for part in parts or ("cases", "speed", "turns")]
    broken = sum(known[part](logs, wanted or "*") for part, _, wanted in chosen)
    print(f"\n{broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

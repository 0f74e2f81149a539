"""flashlib's lru_ensure on the steps that gpu-bench has timed: the same slots, experts, routes and misses.

    beside_flashlib.py RESULTS [--seconds N]

RESULTS is what `gpu-bench --json` wrote. Each row of admissions there says which steps it was of
(benches/gpu/src/walk.rs says why they miss as often as they do); their routes are drawn here once more by the same
rule. They are decided one after another in a captured graph, whose replays are timed by events as gpu-bench does it,
and every call must have missed as often as it was to.

Rows come out one a line as JSON, as soon as they are known, and at the end as a table beside ftcache's. Where torch,
flashlib or a GPU is missing, a sentence says so and that is all. Rows that are not begun in so many seconds are left
out.

This file is not called flashlib.py, as it would then be what `import flashlib` finds.
"""

import argparse
import json
import os
import random
import statistics
import sys
import threading
import time

WANTED = "0.4.0"
GOAL_ROUTES = 120

# As effort.rs has them.
GRAPH_STEPS = 192
REPEATS = 11
REPEAT_SECONDS = 0.010
WARM_UP_SECONDS = 0.100
MOST_LAUNCHES = 1000


def padded(count):
    """So many 32-bit numbers that the next row begins at a multiple of 16 bytes: Triton compiles anew for others."""
    return (count + 3) // 4 * 4


def walk_routes(row, experts, top_k):
    """The routes of each step of a round, as walk.rs draws them; the order of experts is another."""
    walk, misses = row["walk"], row["misses"]
    layers, hits = walk["layers"], walk["hits"]
    order = [random.Random(layer).sample(range(experts), experts) for layer in range(layers)]
    steps = []
    for step in range(layers * walk["groups"]):
        group = hits + step // layers * misses
        experts_of_layer = order[step % layers]
        chosen = experts_of_layer[:hits] + experts_of_layer[group : group + misses]
        random.Random((1 << 32) + step).shuffle(chosen)
        steps.append([chosen[at % len(chosen)] for at in range(row["requests"] * top_k)])
    return steps


class Rig:
    """State of a cache, and one row's routes, on the GPU."""

    def __init__(self, torch, lru_ensure, results, row):
        self.torch, self.lru_ensure = torch, lru_ensure
        self.experts, self.layers = results["experts"], row["walk"]["layers"]
        slots = results["slots"]
        steps = walk_routes(row, self.experts, results["top_k"])
        self.step_count, self.width = len(steps), len(steps[0])
        blank = [-1] * (padded(self.width) - self.width)
        device = {"device": "cuda"}
        self.routes = torch.tensor([step + blank for step in steps], dtype=torch.int32, **device)
        self.answers = torch.empty_like(self.routes)
        self.slot_of_id = torch.full((self.layers * self.experts,), -1, dtype=torch.int32, **device)
        self.id_of_slot = torch.full((slots,), -1, dtype=torch.int32, **device)
        # 32 bits, which flashlib says are the faster.
        self.usage = torch.zeros(slots, dtype=torch.int32, **device)
        self.clock = torch.zeros((), dtype=torch.int32, **device)
        plan = padded(min(self.width, slots))
        self.sources = torch.empty(plan, dtype=torch.int32, **device)
        self.targets = torch.empty(plan, dtype=torch.int32, **device)
        # For each step of a round its misses, 16 bytes apart.
        self.miss_counts = torch.zeros((self.step_count, 2), dtype=torch.int64, **device)

    def round(self):
        """Enqueues all steps once. Without statistics, which are compiled out then."""
        for step in range(self.step_count):
            self.lru_ensure(
                self.routes[step, : self.width],
                self.slot_of_id,
                self.id_of_slot,
                self.usage,
                self.clock,
                self.answers[step, : self.width],
                self.sources,
                self.targets,
                self.miss_counts[step, 0],
                id_base=step % self.layers * self.experts,
            )

    def check(self, misses):
        """Every step of the last round missed as often as it was to."""
        found = set(self.miss_counts[:, 0].tolist())
        if found != {misses}:
            raise RuntimeError(f"steps missed {sorted(found)} and not {misses}")


def seconds_of(torch, count, work):
    """Seconds of `work` behind itself, as effort.rs and driver.rs time it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    work()
    start.record()
    for _ in range(count):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / count


def measure(torch, lru_ensure, results, row):
    rig = Rig(torch, lru_ensure, results, row)
    for _ in range(2):
        rig.round()
    torch.cuda.synchronize()
    rig.check(row["misses"])
    rounds = -(-GRAPH_STEPS // rig.step_count)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            rig.round()
    begun = time.monotonic()
    while time.monotonic() - begun < WARM_UP_SECONDS:
        graph.replay()
        torch.cuda.synchronize()
    once = max(seconds_of(torch, 1, graph.replay), 1e-9)
    count = max(1, min(MOST_LAUNCHES, int(REPEAT_SECONDS / once)))
    repeats = [seconds_of(torch, count, graph.replay) for _ in range(REPEATS)]
    rig.check(row["misses"])
    return [seconds / (rounds * rig.step_count) * 1e6 for seconds in repeats]


def rows_of(results):
    """Rows to measure, the narrow ones first: wide ones take long to compile."""
    timed = [row for row in results["admission"] if "us" in row]
    threads = timed[0]["threads"] if timed else None
    return sorted((row for row in timed if row["threads"] == threads), key=lambda row: row["routes"])


def print_table(results, head, rows, measured):
    """Both beside each other, and whether the goal is reached."""
    misses = sorted({row["misses"] for row in rows})
    cells = {}
    for row in rows:
        key = (row["requests"], row["misses"])
        cells[key] = (row["us"], measured.get(key))
    print(f"\n{head}\n")
    print(f"Admission, microseconds a step by graph replay, {results['slots']} slots: ftcache / flashlib (ratio).\n")
    print("| requests | routes | distinct | " + " | ".join(f"{count} misses" for count in misses) + " |")
    print("|" + "---|" * (3 + len(misses)))
    for requests, routes, distinct in dict.fromkeys((row["requests"], row["routes"], row["distinct"]) for row in rows):
        line = [str(requests), str(routes), str(distinct)]
        for count in misses:
            ours, theirs = cells.get((requests, count), (None, None))
            if ours is None:
                line.append("-")
            elif theirs is None:
                line.append(f"{ours:.2f} / -")
            else:
                line.append(f"{ours:.2f} / {theirs:.2f} ({ours / theirs:.2f})")
        print("| " + " | ".join(line) + " |")
    compared = [
        (ours / theirs, requests, count)
        for (requests, count), (ours, theirs) in cells.items()
        if theirs is not None and requests * results["top_k"] <= GOAL_ROUTES
    ]
    if compared:
        ratio, requests, count = max(compared)
        word = "reached" if ratio <= 1 else "not reached"
        found = f"{ratio:.2f} of it at most, with {requests} requests and {count} misses, {len(compared)} rows compared"
        print(f"\n- At most flashlib's time at up to {GOAL_ROUTES} routes: {found}; {word}.")
    sys.stdout.flush()


def missing():
    """What is missing, or torch, lru_ensure and flashlib's version."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported ({error})"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    try:
        import flashlib
        from flashlib.kernels.slot_cache import lru_ensure
    except ImportError as error:
        return f"flashlib's lru_ensure cannot be imported ({error})"
    return torch, lru_ensure, flashlib.__version__


def main():
    parser = argparse.ArgumentParser(description="flashlib's lru_ensure beside gpu-bench")
    parser.add_argument("results", help="what gpu-bench --json wrote")
    parser.add_argument("--seconds", type=float, default=300.0, help="no row is begun after so many")
    arguments = parser.parse_args()
    with open(arguments.results, encoding="utf-8") as file:
        results = json.load(file)
    rows = rows_of(results)
    if not rows or results["is_emulated"]:
        print("flashlib was not measured: the results have no times of a GPU")
        return
    found = missing()
    if isinstance(found, str):
        print(f"flashlib was not measured: {found}")
        return
    torch, lru_ensure, version = found
    name = torch.cuda.get_device_name()
    head = f"{name}, flashlib {version}, torch {torch.__version__}"
    if version != WANTED:
        head += f" (flashlib {WANTED} was wanted)"
    if name != results["device"]:
        head += f"; ftcache's times are of {results['device']}"
    measured = {}
    ended = threading.Lock()

    def end():
        # Once, whoever comes first.
        if ended.acquire(blocking=False):
            print_table(results, head, rows, dict(measured))
            return True
        return False

    def give_up():
        # A kernel that is still compiling cannot be interrupted, only left.
        if end():
            print("flashlib: out of time; rows without a number were not measured", flush=True)
            os._exit(0)

    # A row that was begun in time may end a little later.
    watch = threading.Timer(arguments.seconds + 60.0, give_up)
    watch.daemon = True
    watch.start()
    begun = time.monotonic()
    for row in rows:
        if time.monotonic() - begun > arguments.seconds:
            print("flashlib: out of time; rows without a number were not measured", flush=True)
            break
        told = {name: row[name] for name in ("requests", "routes", "distinct", "misses")}
        try:
            repeats = measure(torch, lru_ensure, results, row)
            told["flashlib_us"] = statistics.median(repeats)
            told["flashlib_us_of_repeats"] = repeats
            told["ftcache_us"] = row["us"]
            measured[row["requests"], row["misses"]] = told["flashlib_us"]
        except Exception as error:  # Wide rows are more than Triton compiles.
            words = str(error).split()
            told["error"] = f"{type(error).__name__}: {' '.join(words)[-300:]}"
        print(json.dumps(told), flush=True)
    end()


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Faults: random scenarios of a pool on a virtual clock, random input for parsers, writes and allocations that fail.

python tests/faults/faults.py pools --scenarios 1000000     # into benchmarks/results/faults.json
python tests/faults/faults.py pools --seed 45               # one scenario, event by event
python tests/faults/faults.py fuzz --examples 5000
python tests/faults/faults.py writes                        # --points 12: some of each operation
python tests/faults/faults.py sites                         # --part batch: one part; --points 12: some of it
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import pack  # imports the pack as higgs_tts
import torch
from higgs_tts.tests.faults.results import write
from higgs_tts.tests.pool_scenarios import Failed, Scenario

torch.set_num_threads(1)


def main():
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    pools_of = commands.add_parser("pools")
    pools_of.set_defaults(run=pools)
    pools_of.add_argument("--scenarios", type=int, default=1000)
    pools_of.add_argument("--seed", type=int, help="run this one alone, and print its events")
    fuzz_of = commands.add_parser("fuzz")
    fuzz_of.set_defaults(run=fuzz)
    fuzz_of.add_argument("--examples", type=int, default=1000, help="for each parser")
    fuzz_of.add_argument("--parsers", help="some of them, with commas between")
    fuzz_of.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    writes_of = commands.add_parser("writes")
    writes_of.set_defaults(run=writes)
    writes_of.add_argument("--points", type=int, default=0, help="for each operation; all by default")
    sites_of = commands.add_parser("sites")
    sites_of.set_defaults(run=sites)
    sites_of.add_argument("--part", help="one of them")
    sites_of.add_argument("--points", type=int, default=0, help="for each part; all by default")
    sites_of.add_argument("--device", default="cpu")
    sites_of.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    given.run(given)


def pools(given: argparse.Namespace):
    """Run scenarios on all cores, with seeds that no earlier run had."""
    if given.seed is not None:
        Scenario(given.seed, print).run()
        return
    first, began = random.SystemRandom().randrange(1 << 32), time.monotonic()
    print(f"seeds {first} to {first + given.scenarios - 1}", flush=True)
    with multiprocessing.Pool(os.cpu_count()) as processes:
        seeds = range(first, first + given.scenarios)
        failing = [seed for seed in processes.imap_unordered(failing_seed, seeds, 500) if seed is not None]
    minutes = (time.monotonic() - began) / 60
    write("pools", {"scenarios": given.scenarios, "per_minute": round(given.scenarios / minutes), "failing": failing})


def failing_seed(seed: int) -> int | None:
    """Return the seed if its scenario fails."""
    try:
        Scenario(seed).run()
    except Failed as error:
        print(f"{error}. Repeat it: python tests/faults/faults.py pools --seed {seed}", flush=True)
        return seed
    return None


def fuzz(given: argparse.Namespace):
    """Run examples of each parser."""
    from higgs_tts.tests.fuzzed import PARSERS

    print(f"seed {given.seed}", flush=True)
    rows = [fuzz_one(name, given) for name in (given.parsers.split(",") if given.parsers else PARSERS)]
    if not given.parsers:
        write("fuzz", rows)


def fuzz_one(name: str, given: argparse.Namespace) -> dict:
    """Return a parser's row. found: defects, of which the smallest inputs are printed."""
    from higgs_tts.tests.fuzzed import PARSERS, outcome
    from hypothesis import HealthCheck, seed, settings
    from hypothesis import given as given_by

    row = {"parser": name, "executions": 0, "found": 0}

    @seed(given.seed)
    @settings(max_examples=given.examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given_by(PARSERS[name].inputs)
    def parse(what):
        row["executions"] += 1
        outcome(PARSERS[name], what)

    try:
        parse()
    except Exception as error:  # any is a defect; hypothesis groups several
        defects = getattr(error, "exceptions", [error])
        row["found"] = len(defects)
        for one in defects:
            print(f"{name}: {type(one).__name__}: {str(one)[:300]}", *getattr(one, "__notes__", ()), flush=True)
    print(row, flush=True)
    return row


def writes(given: argparse.Namespace):
    """Let changes of files fail."""
    tests = pack.ROOT / "tests"
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder) / "write_faults.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tests / "write_faults.c", "-ldl"], check=True)
        command = [sys.executable, tests / "write_faults.py", *([str(given.points)] if given.points else [])]
        env = os.environ | {"LD_PRELOAD": str(library)}
        told = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout
    write("writes", json.loads(told))


def sites(given: argparse.Namespace):
    """Let allocations of tensors fail."""
    from higgs_tts.tests.allocation_faults import parts, run

    print(f"seed {given.seed}", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, part in parts(pathlib.Path(folder), given.device).items():
            if given.part in (None, name):
                row, failing = run(name, part, given.points, given.seed)
                rows.append(row)
                print(row, *failing, sep="\n", flush=True)
    if not (given.part or given.points):
        write("sites", rows)


if __name__ == "__main__":
    main()

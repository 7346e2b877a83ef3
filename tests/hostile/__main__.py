"""The campaign: ``python -m tests.hostile --tries 100000 --seed 0 --out results/hostile.json``."""

import argparse
import platform
import sys
import time
from pathlib import Path

from tests.hostile.supervisor import run
from tests.hostile.targets import TARGETS, specimens

from fastcaps._files import json_bytes, write_atomically
from fastcaps._machine import processor_name, processors
from fastcaps._progress import progress_bar


def main() -> int:
    """Run the campaign; 1 when anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--tries", type=int, default=2000, help="number of files, over all kinds (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first try (default: 0)")
    parser.add_argument("--only", help="kind of file, such as checkpoint (default: all)")
    parser.add_argument("--out", type=Path, help="JSON file for the summary")
    options = parser.parse_args()
    targets = [target for target in TARGETS if options.only in (None, target.name)]
    if not targets:
        parser.error(f"--only {options.only}: expected one of {', '.join(target.name for target in TARGETS)}")
    begun = time.monotonic()
    specimens()
    each = max(1, options.tries // len(targets))
    summaries = {}
    for target in targets:
        with progress_bar(target.name, each) as observe:
            summaries[target.name] = run(target, range(options.seed, options.seed + each), observe)
        for failure, count in summaries[target.name].failures.most_common():
            print(f"  {count:6} × {failure} (seed {summaries[target.name].examples[failure]})")
    failed = sum(sum(summary.failures.values()) for summary in summaries.values())
    tries = sum(summary.tries for summary in summaries.values())
    print(f"{tries} tries, {failed} failures")
    if options.out is not None:
        document = {
            "command": f"python -m tests.hostile --tries {options.tries} --seed {options.seed}",
            "machine": {"processor": processor_name(), "cores": processors(), "python": platform.python_version()},
            "seed": options.seed,
            "tries": tries,
            "failures": failed,
            "seconds": round(time.monotonic() - begun, 1),
            "kinds": {name: summary.to_dict() for name, summary in summaries.items()},
        }
        write_atomically({options.out: json_bytes(document)})
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

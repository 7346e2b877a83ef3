"""Run all benchmarks, or those named: ``python -m benchmarks [routing …]``."""

import sys
from importlib import import_module

from benchmarks.printing import print_machine

ALL = ["routing", "convolution", "training", "memory", "data", "distributed", "serving"]

if __name__ == "__main__":
    chosen = sys.argv[1:] or ALL
    unknown = [name for name in chosen if name not in ALL]
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}: there are {', '.join(ALL)}")
    print_machine()
    for name in chosen:
        print(f"\n## {name}\n", flush=True)
        import_module(f"benchmarks.{name}").main()

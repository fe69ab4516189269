"""Run all benchmarks, or those that are named: ``python -m benchmarks [moments linear …]``."""

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("[a-z]*.py"))


def main(wanted: list[str]) -> int:
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        print(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(names())}")
        return 2
    for name in wanted or names():
        print(f"\n== {name}", flush=True)
        sys.argv = [name]
        runpy.run_path(str(HERE / f"{name}.py"), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

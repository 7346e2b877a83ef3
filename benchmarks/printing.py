"""Print results, and the machine that they come from."""

from fastcaps.benchmark.measure import machine


def print_machine() -> None:
    """Print a description of this machine."""
    this = machine()
    print(f"processor  {this.processor}, {this.cores} cores, {this.instructions}")
    print(f"threads    {this.threads}")
    print(f"versions   {this.packages}")


def table(columns: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table, with columns aligned for a terminal."""
    widths = [max(len(row[k]) for row in [columns, *rows]) for k in range(len(columns))]
    for number, row in enumerate([columns, *rows]):
        print("| " + " | ".join(f"{cell:{widths[k]}}" for k, cell in enumerate(row)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|", flush=True)

"""Write a small click log, 100,000 rows of CSV, to standard output: the one that README.md trains on.

With a number, as in `python examples/ads_csv.py 1`, that of another day.
"""

from __future__ import annotations

import csv
import sys

from ctr.synth import AD_COLUMNS, ad_rows

ROWS = 100_000


def main() -> None:
    """The same rows every time, on every machine."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(AD_COLUMNS)
    out.writerows(ad_rows(ROWS, int(sys.argv[1]) if len(sys.argv) > 1 else 0))


if __name__ == "__main__":
    main()

"""Write clicks in the columns of TalkingData's challenge as CSV: so many rows, of the day that is given."""

from __future__ import annotations

import csv
import sys
from datetime import datetime

from ctr.synth import FIRST_DAY, INSTALL_COLUMNS, install_rows

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
DAY = datetime.fromisoformat(sys.argv[2]) if len(sys.argv) > 2 else FIRST_DAY


def main() -> None:
    """The same rows every time, on every machine."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(INSTALL_COLUMNS)
    out.writerows(install_rows(ROWS, DAY))


if __name__ == "__main__":
    main()

"""python -m load_tests.records [--page] writes docs/internals/records.md.

It measures the default model again, which takes a few minutes; --page leaves that out. Needs
DUALSTREAM_DATA. See peers.py for the peers.
"""

import sys

from load_tests.markdown import DOCS
from load_tests.records import ours, stored
from load_tests.records.page import page


def main() -> None:
    records = stored.read()
    if "--page" not in sys.argv[1:]:
        ours.measure(records)
        stored.write(records)
    (DOCS / "internals/records.md").write_text(page(records))


if __name__ == "__main__":
    main()

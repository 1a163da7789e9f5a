"""python -m load_tests.paper_tables [table ...] writes docs/internals/papers.md and its plots.

With table names, it runs only these and replaces only their sections of the page.
"""

import importlib
import platform
import sys
import time

import sklearn

from dualstream import solvers
from load_tests.paper_tables.report import DOCS, Section
from load_tests.sections import with_section

TABLES = (
    "online_dca_table_4",
    "online_dca_table_2",
    "o_dca_fig_1",
    "drift_elec2",
    "thesis_table_2_1",
    "thesis_table_3_2",
    "replay_gap",
    "thesis_fig_2_2",
    "thesis_table_4_2",
    "thesis_fig_4_1",
    "thesis_fig_5_1",
    "aspdc_figs_1_to_3",
    "dcd_liblinear",
    "dcd_cleveland",
)

HEAD = """\
# Papers, reproduced

Written by `DUALSTREAM_DATA=... python -m load_tests.paper_tables` (numeric identity `{identity}`,
Python {python}, scikit-learn {sklearn}). Do not edit. On the same identity everything except times
repeats to the last digit. Tables can be run alone, so seconds come from several runs.

**Reproduced** means that our mean is within three of the printed standard deviations of the printed
mean. Some papers round deviations to 0.000; "within rounding" marks where that decides. If a paper
prints no numbers, the claim of its figure is tested. See also
[Formulas by file](formulas.md) and [Misprints](misprints.md).

"""

NOT_RUN = """
## Not run

| table or figure | reason |
| --- | --- |
| Online DCA, Tables 3 and 5 | CPU seconds of Matlab |
| O-DCA, Fig. 2 in full | 1,500 of 274,085 rows of RCV1 are available |
| Thesis, Fig. 2.2: SGD and LPS | no such learner; LPS is the author's program |
| Thesis, Fig. 2.3 to 2.6 | RDA and TG have no averages; run times |
| Thesis, Table 3.2 and chapter 5: CCAT, COVTYPE | data not available |
| Thesis, Table 3.3 and Fig. 3.2 | MNIST-E is not available |
| Thesis, Table 3.2: IJCNN in full, MNIST | a third of the rows is available; run time |
| Thesis, Table 3.2: times and rivals | other machine; programs not available |
| Thesis, Fig. 4.1 beyond 4,000 rows | run time |
"""


def main() -> None:
    sections = []
    for name in sys.argv[1:] or TABLES:
        start = time.perf_counter()
        section = importlib.import_module(f"load_tests.paper_tables.{name}").run()
        took = time.perf_counter() - start
        print(f"{name}: {section.counts} ({took:.0f} s)", flush=True)
        sections.append((section, took))
    if sys.argv[1:]:
        place = DOCS / "internals/papers.md"
        text = place.read_text()
        for section, took in sections:
            print(section.body)
            text = with_table(text, section, took)
        place.write_text(text)
        return
    head = HEAD.format(
        identity=solvers.numeric_identity(),
        python=platform.python_version(),
        sklearn=sklearn.__version__,
    )
    (DOCS / "internals/papers.md").write_text(
        head + summary(sections) + contents(sections) + NOT_RUN
    )


def summary(sections: list[tuple[Section, float]]) -> str:
    lines = ["| table or figure | reproduced | seconds |", "|---|---|---|"]
    lines += [f"| {s.title} | {s.counts} | {took:.0f} |" for s, took in sections]
    return "\n".join(lines) + "\n"


def with_table(text: str, section: Section, took: float) -> str:
    """The page with this section, and its line in the summary, replaced."""
    line = f"| {section.title} | {section.counts} | {took:.0f} |"
    before, _, rest = text.partition("\n## ")
    lines = before.rstrip("\n").split("\n")
    mine = [i for i, old in enumerate(lines) if old.startswith(f"| {section.title} |")]
    if mine:
        lines[mine[0]] = line
    else:
        lines.append(line)
    head = "\n".join(lines) + "\n"
    tables, _, not_run = ("\n## " + rest).partition("\n## Not run\n")
    tables = with_section(tables, section.title, section.body.rstrip("\n").split("\n"))
    return head + tables + "\n## Not run\n" + not_run


def contents(sections: list[tuple[Section, float]]) -> str:
    return "".join(f"\n## {section.title}\n\n{section.body}" for section, _ in sections)


main()

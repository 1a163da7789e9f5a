"""Prose of docs/internals/records.md."""

HEAD = """\
# Files with published results

Written by `DUALSTREAM_DATA=... python -m load_tests.records` (numeric identity `{identity}`). Do
not edit. The figures are in `load_tests/records/records.json`;
`MOA_JAR=... python -m load_tests.records.peers` measures those of the peers that are missing.
Versions: {packages}.

Each learner sees a whole file once, in its order: it predicts a row, then learns it. Nothing is
tuned: the default model of Dualstream, `full`, and the defaults of the peers. Everything was run
once, `full` on {machine} and the peers on {peers}, while other programs ran.
[Learners](#learners) says what each name means.
"""

LOSSES = """\
## Where `full` loses

Every learner with a smaller error, however small the difference. Of numbers:

"""

LOSSES_OF_CLASSES = """\
Of two classes, where the constants of `full` were chosen on most of these files:

"""

NUMBERS = """\
## Numbers

MAE / RMSE, the least of each line in bold. bike and MetroTraffic are in order of time. *Columns*
are those of the file. Categories are declared as such for `full` and LightGBM. Times are
microseconds of CPU a row.

"""

NUMBER_MEANS = """\
Errors of `full` divided by those of the other, geometric means over the eight published files.
Below 1, `full` has the smaller error. The last columns count the files on which it does:

"""

RELATIVE = """\
### Relative MAE

MAE divided by that of the last target, the naive forecast. Above 1, repeating the last target errs
less. The mean absolute scaled error of forecasting (Hyndman and Koehler 2006) is the same ratio,
with the naive errors of past data. The least of each line is in bold:

"""

CLASSES = """\
## Two classes

No package that we found on PyPI, npm or in Debian ships the streams Insects and airlines: River
downloads the first when it is used, and CapyMOA the second. [Flights](history.md#flights) has real
flights in order of time.

Percentage of errors, the least of each line in bold; in brackets microseconds of CPU a row. elec2
is in order of time. Files sorted by class are shuffled. A dash: see
[runs without a figure](#runs-without-a-figure).

"""

CLASS_MEANS = """\
Mean percentage of errors over the files that the other finished, and of `full` on the same:

"""

KAPPA = """\
### Kappa-temporal

1 - errors / errors of the last label: 1 without an error, 0 for a learner that errs as often as the
last label, negative for more errors (Bifet, Read, Žliobaitė, Pfahringer and Holmes, *Pitfalls in
benchmarking data stream classification and how to avoid them*, ECML PKDD 2013; Žliobaitė et al.,
*Evaluation methods and decision theory for classification of streaming data with temporal
dependence*, Machine Learning 98, 2015). It is meant for files in order of time: elec2, and ijcnn1,
whose rows are overlapping windows of a series. In the others neighbouring labels say little. The
largest of each line is in bold:

"""

LIMITS = """\
### Runs without a figure

"""

LEARNERS = """\
## Learners

- `full`: in pieces of 1,000 rows, which gives the same predictions as single rows. One
  specification for all files.
- published: the least of six methods of MOA, picked with hindsight for each measure: ARFReg,
  OzaReg, SOKNL, SGBT(ARF), SGBT(Oza) and Oza(SGBT), the means of five runs each. The method named
  has the least MAE. From Gunasekara, Pfahringer, Gomes and Bifet, *Gradient boosted bagging for
  evolving data stream regression*, Data Mining and Knowledge Discovery (2025). The runs are in the
  repository `nuwangunasekara/SGBR`, folder `exp/post_hoc_new`. These are the authors' figures, with
  their settings and on their machine. They include row 1; ours do not.
- last label, last target: what came before, repeated. On elevators and MetroTraffic this alone has
  a smaller error than all published figures.
- `lightgbm`, `lightgbm_5000`: LightGBM with its defaults, trained from scratch after rows 50, 100,
  200, 300 and then every 500, on all rows so far or on the last 5,000, by one thread. Categories of
  the files of numbers are categories for it.
- `lightgbm_last`, `lightgbm_5000_last`: the same with the label or target of the row before as one
  more column.
- `river_arf`: River's adaptive random forest of 10 trees.
- `moa_arf_30`, `moa_srp`, `moa_srp_30`, `moa_leveraging_bag`, `moa_sgbt`: MOA's adaptive random
  forest of 30 trees, streaming random patches of 100 trees, its default, and of 30, leveraging
  bagging and streaming gradient boosted trees, otherwise with their defaults. All columns are
  numbers. Times are those of the thread that learns, without garbage collection. `moa_srp` and
  `moa_srp_30` ran on the last machine that the first paragraphs name: compare their times with
  caution. A run ends after 15 minutes of wall clock (on a9a, 150), with other programs on both
  cores, or with a heap of 6 GB.
"""

CAVEATS = """\
## Caveats

- The constants of `full` were chosen on streams of two classes, most of these among them. Past
  targets and the long memory of the trees were measured on bike, MetroTraffic, elevators and
  DemandFnotNull while they were built, pairs of numbers on bike. The other files of numbers were
  not used.
- Several files are in no order of time. They show how fast a learner learns, not how it follows
  a change.
- 800 rows of abalone repeat the row 200 rows before, which the member `neighbours` finds. In
  *abalone, no repeats* each row is there once.
- A price is missing once in DemandFnotNull, for `full` and LightGBM.
- A model of LightGBM serves 500 rows. Training more often can help it, at a higher cost.
- The order of rows says much on abalone and elevators, too: `full` learns from the last targets.
- Differences of less than a percent, or of a tenth of a point on a small file, can be chance.
- Times of different learners were not measured in pairs.
"""

"""What the document says around its tables."""

HEAD = """\
# Untuned on real streams

Written by `DUALSTREAM_DATA=... python -m load_tests.streams` (numeric identity
`{identity}`, Python {python}). Do not edit. The peers' figures are
kept in `load_tests/streams/peers.json`; `--peers` runs them again. They are of
{packages}.

Every learner sees a stream once and row by row: it scores a row, then learns it. *Mistakes* are
the percentage of rows whose score has the wrong sign (0 counts as positive); *log-loss* is the mean
over the rows, in nats, of the score taken as log odds and clipped to ±30. Nobody is tuned: one
specification of ours for all streams, and the peers' defaults.

- **single** is `dual_ascent` with the logistic loss and `strength` 30 behind `balanced` scaling.
- **eight**, **twelve** and **papers** are `portfolio` with the `members` of that name; PORTFOLIO.md
  tells how to read the weights of their members.
- `vw` is Vowpal Wabbit with `--loss_function logistic`; `vw_sgd`, `vw_coin`, `vw_ftrl` add the
  option of that name; `vw_hinge` has `--loss_function hinge`.
- `river_lr`, `river_pa`, `river_alma` are River's LogisticRegression, PAClassifier and
  ALMAClassifier behind its StandardScaler.
- `sk_log` and `sk_hinge` are scikit-learn's SGDClassifier behind its StandardScaler, with
  `partial_fit` on each row; `_noscale` is without a scaler. Their margins, as those of `vw_hinge`,
  were not made to be log odds: judge them by their mistakes.
- Streams of more than 500 columns are fed to River without a scaler, and to scikit-learn behind
  MaxAbsScaler: to centre thousands of columns for each row is not practical.
"""

THIRTEEN = """\
## The streams of the reference

Those of `tests/golden/streams.json`, in the orders that it names. They were in view when the
members of the portfolios were chosen. Percent of mistakes; in brackets the points behind the best
peer, picked for each stream with hindsight; ± is one standard error of its percentage. † is the
reference's figure, not run here. *The last label* is what one errs by always saying the label
before: where that is little, the stream's order tells much.
"""

BEHIND = """\
Points of mistakes behind the best peer; blue is ahead of it, and bold is within half a point:
"""

CURVES = """\
Percent of mistakes over the last tenth of the stream, along its rows, beside its three best peers
(blue Vowpal Wabbit, green River, orange scikit-learn). The scale leaves the first twentieth out:
"""

CURVES_OTHERS = """\
The same for the orders that drift and for the generated streams:
"""

LOSSES = """\
Where the best peer is more than half a point ahead:
"""

REFERENCE_ONLY = """\
Taken over from the reference and counted as peers above (Hoeffding adaptive tree, adaptive random
forest: not linear):
"""

OTHERS = """\
## Other streams

They are not in the reference. The real sets are of the same kind as those in it, and the choice of
our defaults may have seen some of them; the generated streams it has not seen. Sets whose files are
grouped by class are shuffled with one seed, or kept grouped as a stream that drifts, where the
name says so; elec2 and ijcnn1 are the first 10,000 rows of a shuffled order. The generators are
River's, 10,000 rows each with fixed seeds: SEA (a tenth of the labels wrong) and Agrawal change
their concept three times, RandomRBFDrift and Hyperplane (a twentieth wrong) all the time. On a set
of some hundred rows half a point is a row or two; there it is the beginning that counts, and a
portfolio has to find its members first.
"""

DIFFERENCES = """\
## Where the peers' runs differ from the reference

Of {count} runs all but these meet the reference to its rounding. These are of {peers}:

"""

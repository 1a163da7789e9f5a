"""Prose of docs/internals/streams.md."""

HEAD = """\
# Classification streams

Written by `DUALSTREAM_DATA=... python -m load_tests.streams` (numeric identity `{identity}`,
Python {python}). Do not edit.

Each learner sees a stream once, row by row: it scores a row, then learns it. *Errors* are the
percentage of rows whose score has the wrong sign (0 counts as positive). *Log-loss* is the mean
over the rows, in nats, of the score as log odds, clipped to ±30. Nothing is tuned: one
specification of ours for all streams, and the defaults of the peers. [Files with published
results](records.md) compares whole files with MOA and with published figures.
"""

LINEAR = """\
## Linear models on whole streams

Our linear models with linear peers, on all rows of 38 streams:

- **single**: `dual_ascent`, logistic loss, `strength` 30, `balanced` scaling.
- **eight**, **twelve**, **papers**: [portfolios](../guides/portfolio.md) with these `members`.
- `vw`: Vowpal Wabbit, `--loss_function logistic`; `vw_sgd`, `vw_coin`, `vw_ftrl` add that option;
  `vw_hinge` has the hinge loss.
- `river_lr`, `river_pa`, `river_alma`: River's LogisticRegression, PAClassifier and
  ALMAClassifier after StandardScaler.
- `sk_log`, `sk_hinge`: scikit-learn's SGDClassifier after StandardScaler, `partial_fit` on each
  row; `_noscale` without a scaler.

Margins of `sk_*` and `vw_hinge` are not log odds: compare their errors only. With more than 500
columns River runs without a scaler and scikit-learn after MaxAbsScaler. The peers' figures are in
`load_tests/streams/peers.json`; `--linear-peers` runs them again. Versions: {packages}.
"""

THIRTEEN = """\
### Reference streams

The streams of `tests/golden/streams.json`, in its orders. The linear members were chosen on them.
Percentage of errors; in brackets the points behind the best peer, picked for each
stream with hindsight; ± is one standard error. † is the reference's figure, not run here. *The
last label* predicts the label before. [Kappa-temporal](records.md#kappa-temporal) is 0 for it, and
1 without an error. It is meant for elec2 and ijcnn1, which are in order of time.
"""

BEHIND = """\
Points of errors behind the best peer; blue is ahead of it, bold within half a point:
"""

CURVES = """\
Percentage of errors over the last tenth of the stream, along its rows, with its three best peers
(blue Vowpal Wabbit, green River, orange scikit-learn). The scale leaves out the first twentieth:
"""

CURVES_OTHERS = """\
The same for orders that drift and for generated streams:
"""

LOSSES = """\
Streams on which the best peer is more than half a point ahead:
"""

REFERENCE_ONLY = """\
Figures of the reference that count as peers above (Hoeffding adaptive tree, adaptive random
forest):
"""

OTHERS = """\
### Other streams

Streams outside the reference. Files grouped by class are shuffled with one seed, or kept grouped
where the name says so; elec2 and ijcnn1 are the first 10,000 rows of a shuffled order. The
generators are River's, 10,000 rows each. On a few hundred rows half a point is one or two rows.
Where rows are in the order of their class, the last label errs next to never, and Kappa-temporal
is far below 0 for all.
"""

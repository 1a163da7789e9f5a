"""What the document says around its tables."""

HEAD = """\
# The portfolio for numbers

Written by `DUALSTREAM_DATA=... python -m load_tests.regression` (numeric identity
`{identity}`, Python {python}). Do not edit. The peers' figures are
kept in `load_tests/regression/peers.json`; `--peers` runs them again. They are of
{packages}.

`{{"task": "regression"}}` is a portfolio of ten members, `ten`. This is what it does, why these
ten, and how it stands beside others. docs/PORTFOLIO.md tells how to use it.
"""

RULE = """\
## The rule

Each member corrects a base: the mean of the targets so far, or the last one. Its prediction is the
base and what it has learned, kept within the targets seen and a twentieth of their range beyond.
The portfolio predicts the mean of the members' predictions, weighted by their shares. Errors are
measured in S, the running root mean square of the portfolio's own errors, so that the unit and the
zero of the target do not matter: y → a y + b gives p → a p + b from row 2 on.

After the label

1. the target is taken as at most 50 S away from the prediction, so that one wild number cannot
   ruin what was learned;
2. each share is multiplied by exp(-c/8 · loss), c being the row's weight and the loss the squared
   error in S², at most 32; then shares are normalised and mixed with 0.001 of equal shares;
3. each member takes its own step towards the target;
4. S, the mean, the last target, the least and the largest are brought up to date.

Row 1 is predicted as 0: nobody can know it, and it is left out of all figures below.

**What is proved.** Over the T rows with S > 0, and with v the shares before a row,

    sum -8 ln sum_k v_k exp(-c/8 loss_k)  <=  min_k sum c loss_k + 8 (ln K + T ln(1 / 0.999)).

In words: the left side is what the shares as a whole lose. It is no more than the best single
member loses, and 18.4 for ten members, and 0.008 a row. On a row of weight 1 where all members are
within 2 S of the target the portfolio's own loss is no more than its term on the left, as the
squared loss is exp-concave there (Haussler, Kivinen, Warmuth 1998; Cesa-Bianchi and Lugosi 2006,
section 3.3; for the mixing Herbster and Warmuth 1998). On the other rows that is an observation,
not a theorem. A test holds the bound.
"""

MEMBERS = """\
## The members, and why each

All members but the first two see the row behind `balanced` scaling, and have an intercept. Huber's
loss has delta 1, in S: an error is an outlier by the portfolio's own measure. *Without it* is the
error of the list of nine that is left over that of ten: MAE times RMSE, geometric means over
{seen} streams, and over {unseen} that were loaded only after the list was fixed.

"""

TRIED = """\
Below 1 the nine do better than the ten. A member whose absence costs nothing on average is there
for the streams that the table names: the last table of this page shows what each does alone.

## What was tried and was not chosen

MAE and RMSE over those of `ten`, geometric means; below 1 is better than what was chosen.

"""

TRIED_MORE = """\
A larger `eta` is better on some streams and was not taken: 1/8 is the largest for which the
statement above holds with 2 S. Other constants are no field of a specification, and were varied in
the study that chose them, whose code is not kept here. Worse there: a calibration of each member
as the binary portfolio has it, the one member of largest share instead of the mean, a smaller
reach than 50 S. A larger reach is better where the target truly jumps, and lets one wild number do
more damage. Flat: the cap of 32, the rate of S, how far predictions may go beyond the targets
seen. AdaGrad needs a start in the unit of the target, and never beat diagonal Newton by much.
"""

STREAMS = """\
## Beside others

Every learner sees a stream once and row by row: it predicts a row, then learns it. Errors are
those of rows 2 to the last: MAE / RMSE. Nobody is tuned.

- `river_lr`, `river_pa`, `river_blr` are River's LinearRegression, PARegressor and
  BayesianLinearRegression, with numbers behind StandardScaler and texts behind OneHotEncoder;
  `river_hatr` and `river_amf` are its trees, HoeffdingAdaptiveTreeRegressor and AMFRegressor, on
  the numbers as they are.
- `sk_sgd` is scikit-learn's SGDRegressor behind its StandardScaler, with `partial_fit` on each
  row.
- `vw` is Vowpal Wabbit with its defaults.
- `running mean` and `last y` are no learners: the mean of the targets so far, and the last one.
- A dash: AMFRegressor was not run beyond 5,000 rows or 200,000 cells, nor BayesianLinearRegression
  beyond 1,000 columns.

`load_tests/regression/data.py` and `fresh.py` say what each stream is. *The best of the others* is
picked by MAE for each stream with hindsight, the ratio of RMSE has its own best; *best member
alone* is one of the ten as a portfolio of one.
"""

SEEN = """\
### Streams that were in view

The list was chosen on these {count}.
"""

UNSEEN = """\
### Streams that were not

Loaded only after the list and the constants were fixed. One constant was changed after them: how
far beyond the targets seen a prediction may lie.
"""

PLOT = """\
MAE over that of the best of the others, a row for each stream; left of 1 is better than all of
them. The streams below the dotted line are the new ones:
"""

ALONE = """\
### Each member alone

MAE of a portfolio of that one member over the MAE of `ten`:
"""

CAVEATS = """\
## What these figures do not say

- Ten is linear in the features. Trees win where the target is not: planes, friedman_3, friedman_1,
  digits_number, and in part the drifting Friedman streams.
- Peers have no intercept (BayesianLinearRegression) or reach a level far from 0 slowly
  (PARegressor, Vowpal Wabbit, SGDRegressor behind a scaler of the features alone). An untuned user
  gets these errors, but they flatter us. Where targets are near 0 the distance is smaller: see
  stocks, flares, planes, heavy_tailed, lognormal.
- Some peers diverge on some streams, with errors of 1e8 and more: a smaller step would have spared
  them that.
- No peer predicts the last target. On trump and water that is what wins; `last y` is in the tables
  so that it can be seen.
- Of the 23, eleven are generated, and nine have less than 1,500 rows: differences of some percent
  there may be chance.
- The 23 were seen when the list was chosen. The new ones are the better evidence, and show less.
- On water, heavy_tailed and spambase_run the RMSE is several times the MAE: it is that of a few
  rows.
- A wild first or second target is taken at its word: S then falls by half a percent a row. Several
  wild targets in a row raise S fivefold each.
- After a long stretch that is constant or all but free of noise, a jump is followed some rows
  late: a target counts up to 50 S only.
- Members that correct the last target use the one learned last. Where targets come late they are
  what the delay makes of them, and the shares, which are counted when a target comes, cannot see
  that.
"""

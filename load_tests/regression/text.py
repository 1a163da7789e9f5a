"""Prose of docs/internals/regression.md."""

HEAD = """\
# Regression streams

Written by `DUALSTREAM_DATA=... python -m load_tests.regression` (numeric identity `{identity}`,
Python {python}). Do not edit. The peers' figures, with their RMSE, are in
`load_tests/regression/peers.json`; `--peers` runs them again. Versions: {packages}.

`{{"task": "regression"}}` is the portfolio `full`: the ten linear members of `ten`, and
[nonlinear learners](../guides/nonlinear.md). This page compares both with other libraries, defines
`ten` and gives the reasons for its members. [Portfolios](../guides/portfolio.md) says how to use
them.
"""

LOSSES = """\
## Where `full` loses

Every learner of the [comparison](#comparison-with-other-libraries) with a smaller error than
`full`, however small the difference. *Last y* repeats the last target:

{losses}
Where `full` has a MAE more than 2 % larger than `ten`:

{worse}"""

RULE = """\
## The rule

Each member corrects a base: the mean of the targets so far, or the last target. Its prediction is
the base plus what it has learned, clipped to the range of the targets seen and 5 % beyond. The
portfolio predicts the mean of the members, weighted by their shares. S is the running root mean
square of the portfolio's own errors, and A their running mean absolute value. Errors are measured
in S or A, so a change of unit or zero (y → a y + b) changes predictions the same way from row 2 on.

After each label

1. the target is clipped to within 50 S of the prediction, which limits the damage of one outlier;
2. each share is multiplied by exp(-c/8 · loss), with c the row's weight and the loss the absolute
   error in A / 2, at most 64; then shares are normalised and mixed with 0.001 of equal shares;
3. each member takes its own step towards the target;
4. S, A, the mean, the last target, the minimum and the maximum are updated.

A target is set aside if, from row 51 on, it is further outside the range of all targets so far than
ten times the length of that range. No member learns it, and the rule follows it as above. With the
next target that is not set aside, the rule returns to its numbers from before. After 20 targets
that were set aside (one in 2,000 of them is forgotten with each row) the next one extends the
range. So ten broken targets in sequence leave no trace, and a new unit is learned 20 rows later.

Row 1 is predicted as 0 and left out of all figures. If one of the first 32 rows has a [broken
number](../guides/nonlinear.md#what-they-promise), the portfolio starts again after them, and all of
this is counted for the numbers that it learns then.

**Guarantee.** Over the T rows with S > 0, and with v the shares before a row,

    sum -8 ln sum_k v_k exp(-c/8 loss_k)  <=  min_k sum c loss_k + 8 (ln K + T ln(1 / 0.999)).

The left side is the loss of the shares as a whole. It exceeds the loss of the best member by at
most 18.4 for ten members, and 0.008 a row (Herbster and Warmuth 1998). The absolute loss is convex:
on a row of weight 1 where no loss is at its limit and all are in a range d, the portfolio's own
loss is at most its term on the left and d² / 64 (Cesa-Bianchi and Lugosi 2006, section 2.2). A test
checks the bound.
"""

MEMBERS = """\
## Members

All members but the first two see the row after `balanced` scaling, and have an intercept. Before
that, a value is clipped to within 8 standard deviations of the mean of its column so far (after
1,024 values, to within a quarter of the root of the column's squared deviations), so that one
broken reading does no lasting damage. Huber's
loss has delta 1, in S. *Without it* is the error of the other nine divided by that of ten: MAE
times RMSE, geometric means over {seen} streams, and over {unseen} that were loaded after the list
was fixed.

"""

ADDED = """\
`fast` and `full` add `net`, `boosted-16384`, `boosted-2048-absolute`, in `full` `neighbours` and
`splines`, and `stack`: see [Nonlinear learners](../guides/nonlinear.md). Each of them learns the
target itself, without a base; the trees see [past targets](../guides/portfolio.md#past-targets):

| member | learner |
| --- | --- |
| `net` | neural network, Huber loss |
| `boosted-16384` | boosted trees over the last 16,384 rows, squared loss |
| `boosted-2048-absolute` | the same over the last 2,048 rows, absolute loss: leaves are medians |
| `neighbours` | mean of the nearest of the last 1,000 rows |
| `splines` | a curve of each column |
| `stack` | recursive least squares, Huber loss, on the predictions of all others |

After 512 rows `number-pairs` joins them if there are columns of small whole numbers: diagonal
Newton on pairs of their values. Of these streams flares has such columns.

Each of them but `stack` learns a target more than 10 root mean square errors (`net`: 15 standard
deviations) away as one at that distance. One label of 1e6 or 1e100 among rows 33 to 300 of a stream
then raises the errors of its rows 1,001 to 3,000 by at most 4 % in `full`.
"""

TRIED = """\
Below 1 the nine do better than the ten. A member that costs nothing on average to leave out is
there for the streams that the table names; see [each member alone](#each-member-alone).

## Alternatives

MAE and RMSE divided by those of `ten`, geometric means; below 1 is better than `ten`.

"""

TRIED_MORE = """\
The constants were chosen with squared errors in the rule, the limit of 64 and the half of A with
absolute ones. Not better in `full`: a median of the members by their shares instead of the mean;
leaves that are medians in the long window, too; trees grown on the signs of the errors. Worse, in
an earlier study whose code is not kept: calibrating each member as the binary portfolio does, the
member of largest share instead of the mean, and less than 50 S: 20 S make the MAE of `full` 1 %
larger, on rescaled 32 %; 10 S 3 % and 77 %. A larger limit is better where the target jumps, and
lets outliers do more damage. No effect: the rate of S, the clipping range.
"""

STREAMS = """\
## Comparison with other libraries

Each learner sees a stream once, row by row: it predicts a row, then learns it. Errors are MAE /
RMSE of rows 2 to the last. Nothing is tuned.

- `river_lr`, `river_pa`, `river_blr`: River's LinearRegression, PARegressor and
  BayesianLinearRegression; StandardScaler for numbers, OneHotEncoder for strings.
- `river_hatr`, `river_amf`: River's HoeffdingAdaptiveTreeRegressor and AMFRegressor, unscaled.
- `sk_sgd`: scikit-learn's SGDRegressor after StandardScaler, `partial_fit` on each row.
- `vw`: Vowpal Wabbit with its defaults.
- `running mean`, `last y`: the mean of the targets so far, and the last one.

*Relative MAE* is the MAE divided by that of `last y`, the naive forecast. It is meant for streams
in order of time: milan, trump, chicks, water, airline, stocks, elec2_price, milan_so2 and
ijcnn_last; and for those whose concept changes: friedman_lea, friedman_gra, friedman_gsg, rescaled
and wandering. In the others neighbouring targets say little.

A dash: AMFRegressor was not run beyond 5,000 rows or 200,000 cells, BayesianLinearRegression not
beyond 1,000 columns. `load_tests/regression/data.py` and `held_out.py` define
the streams. *The best of the others* is picked by MAE for each stream with hindsight; the ratio of
RMSE has its own best. *Best member alone* is one of the ten as a portfolio of one. Times are CPU
time to predict and learn a row, all rows in one call, on {machine}, which other programs shared.
"""

SEEN = """\
### Streams used to choose the members

The list of `ten` was chosen on these {count}.
"""

UNSEEN = """\
### New streams

Loaded after the list and the constants were fixed. One constant was changed afterwards: the
clipping range of predictions.
"""

PLOT = """\
MAE divided by that of the best of the others, a row for each stream; left of 1 is better than all
of them. The streams below the dotted line are the new ones:
"""

ALONE = """\
### Each member alone

MAE of a portfolio of that one member divided by the MAE of `ten`:
"""

CAVEATS = """\
## Caveats

- `ten` is linear in the features, and loses to `full` and to trees on nonlinear targets.
- Peers without an intercept (BayesianLinearRegression), or slow to reach a level far from 0
  (PARegressor, Vowpal Wabbit, SGDRegressor), flatter us. Where targets are near 0 the difference
  is smaller: stocks, flares, planes, heavy_tailed, lognormal.
- Some peers diverge, with errors of 1e8 and more; a smaller step prevents that.
- No peer predicts the last target, which is the best of the others on trump, water, airline,
  rescaled, elec2_price and milan_so2; `last y` shows it.
- Of the 23, eleven are generated and nine have less than 1,500 rows: differences of a few percent
  there can be chance. The list was chosen on the 23; the new ones are better evidence, and show
  less.
- No batch model that is trained again and again, such as LightGBM, was run here. [Files with
  published results](records.md) have it, and the ensembles of MOA.
- On water, heavy_tailed and spambase_run a few rows dominate the RMSE.
- A wild first or second target is accepted: S then falls by half a percent a row. Later, several
  targets in sequence raise S fivefold each if they are further than 50 S from the prediction, but
  not so far outside the range of all targets that they are set aside.
- After a long constant stretch a jump is followed with a delay: a target counts up to 50 S only.
- After the unit of a nonlinear target has become 1,000 times as large, `net` needs some hundred
  rows to follow.
- Members that correct the last target use the one learned last. With late labels they use an old
  one, and the shares do not show it.
"""

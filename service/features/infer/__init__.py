"""Proposes a specification with `columns` for a sample: `dualstream infer`, POST /columns/infer.

sample.py          the first rows of a file or a body of any format
forms.py           the form of one value: number, time, null of some system, text
sampled_values.py  what a column holds in the sample: distinct values by form
kinds.py           the type of a column of features by the share of its values, and the reason
labels.py          the label, the task, and columns that give the label away
history.py         groups of a history: keys that return, times, a number
propose.py         the specification, checked by reading the sample with it
responses.py       the proposal as JSON
routes.py          POST /columns/infer; imports the others on its first request
"""

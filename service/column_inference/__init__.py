"""What `dualstream infer` proposes for a file: a specification with `columns`.

sample.py    the first rows of a file of any format
seen.py      what a column holds in the sample: distinct values, missing marks
kinds.py     the type of a column of features, and the reason
labels.py    the label, the task, and columns that give the label away
propose.py   the specification, checked by reading the sample with it
"""

from dualstream.service.cli.inference.propose import Proposal, propose
from dualstream.service.cli.inference.sample import Sample, format_of, read_sample

__all__ = ["Proposal", "Sample", "format_of", "propose", "read_sample"]

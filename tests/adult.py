"""Lines of the data set ADULT, unpacked once per process: that takes 10 ms."""

import functools

from dualstream.service.cli.demo import adult

adult_lines = functools.cache(adult.adult_lines)

"""History columns by dictionaries in plain Python, with the operations of the kernels in order."""

import math

from dualstream.solvers.history.kernels import decay_of
from dualstream.solvers.history.spec import half_life_seconds
from dualstream.solvers.rows.scalar import log_of

STATS = ("count", "sum", "mean", "deviation", "difference", "z", "label_count", "label_mean")
LARGEST = 1e100
NAN = math.nan


def clipped(x, most):
    return max(-most, min(most, x))


def log1p(x):
    return log_of(1.0 + x)


class Block:
    def __init__(self, classes):
        self.weight = self.mean = self.scatter = self.label_weight = 0.0
        self.label_means = [0.0] * classes


class Slot:
    def __init__(self, group, classes):
        self.time = self.last = NAN
        self.labels = []
        self.blocks = [Block(classes) for _ in group["half_life"]]


class Reference:
    """`classes` 1, or the number of classes whose labels are numbers from 0.

    unit  means of labels are in 0 to 1
    """

    def __init__(self, groups, classes=1, decay=decay_of, log=log1p, unit=False):
        self.groups, self.classes, self.decay, self.log = groups, classes, decay, log
        self.unit = unit or classes > 1
        self.tables = [{} for _ in groups]
        self.labels, self.means = 0.0, [0.0] * classes
        self.late, self.lost = [0] * len(groups), [0] * len(groups)

    def target(self, label, j):
        return label if self.classes == 1 else float(label == j)

    def row(self, cells, label, reads, enters, is_late, replaced=NAN):
        """Columns of a row of {column: number}; None for what is missing. It enters afterwards.

        label     NaN if it is not known or does not count
        replaced  the label that a late label replaces
        """
        out = []
        for g, group in enumerate(self.groups):
            out += self.in_group(g, group, cells, label, reads, enters, is_late, replaced)
        if label == label and is_late and replaced == replaced and self.labels:
            for j in range(self.classes):
                self.means[j] = self.mean_with(self.means[j], 1.0 / self.labels, replaced, label, j)
        elif label == label and (enters or is_late):
            self.labels += 1.0
            for j in range(self.classes):
                self.means[j] += (self.target(label, j) - self.means[j]) / self.labels
        return out

    def mean_with(self, mean, part, before, label, j):
        if part >= 1.0 - 1e-9:
            return self.target(label, j)
        mean += part * (self.target(label, j) - self.target(before, j))
        return max(0.0, min(1.0, mean)) if self.unit else clipped(mean, LARGEST)

    def in_group(self, g, group, cells, label, reads, enters, is_late, replaced):
        timed = any(isinstance(one, str) for one in group["half_life"])
        keys = tuple(cells.get(name) for name in group["by"])
        time = NAN if group["time"] is None else cells.get(group["time"], NAN)
        value = 0.0 if group["of"] is None else cells.get(group["of"], NAN)
        if None in keys or (timed and time != time):
            return [None] * self.width(group)
        table = self.tables[g]
        slot = table.get(keys)
        gap, older, since = 0.0, False, NAN
        if slot and time == time and slot.time == slot.time:
            gap = time - slot.time
            older, gap = gap < 0, abs(gap)
            since = 0.0 if older else self.log(gap)
        factors = []
        for one in group["half_life"]:
            if not timed:
                factors.append((1.0, self.decay(1.0 / one), 1.0))
                continue
            f = self.decay(gap * (1.0 / half_life_seconds(one)))
            factors.append((1.0, 1.0, f) if older else (f, f, 1.0))
        columns = self.read(group, slot, value, since, factors) if reads else []
        if enters and value == value:
            if slot is None:
                slot = table[keys] = Slot(group, self.classes)
            self.late[g] += older
            if not older:
                slot.last = value
                slot.time = time if time == time else slot.time
            for block, (_, keep, mine) in zip(slot.blocks, factors, strict=True):
                self.enter(block, value, keep, mine)
                if timed or label == label:
                    block.label_weight *= keep
            self.enter_label(group, slot, label, factors)
        elif is_late and label == label and value == value and self.takes_labels(group):
            if slot is None:
                self.lost[g] += 1
            elif replaced == replaced:
                self.replace(group, slot, replaced, label, factors, timed)
            else:
                if not timed:
                    for block, (_, keep, _) in zip(slot.blocks, factors, strict=True):
                        block.label_weight *= keep
                self.enter_label(group, slot, label, factors)
        return columns

    def takes_labels(self, group):
        return bool(group["labels"] or {"label_count", "label_mean"} & set(group["stats"]))

    def width(self, group):
        return len(self.read(group, None, NAN, NAN, []))

    def read(self, group, slot, value, since, factors):
        """Columns in the order of the specification; a missing one is NaN, or 0."""
        stats = group["stats"]
        last = slot.last if slot else NAN
        latest = {"last": last, "change": value - last, "since": since}
        columns = [latest[stat] for stat in ("last", "change", "since") if stat in stats]
        for lag in range(group["labels"]):
            label = slot.labels[lag] if slot and lag < len(slot.labels) else NAN
            if self.classes == 1:
                columns.append(label)
            else:
                columns += [1.0 if label == j else NAN for j in range(self.classes)]
        blocks = slot.blocks if slot else [Block(self.classes) for _ in group["half_life"]]
        factors = factors or [(1.0, 1.0, 1.0)] * len(blocks)
        decayed = {stat: [] for stat in STATS}
        for block, (seen, _, _) in zip(blocks, factors, strict=True):
            weight = block.weight
            mean = block.mean if slot else NAN
            deviation = math.sqrt(block.scatter / weight) if slot else NAN
            difference = value - mean
            decayed["count"].append(self.log(weight * seen))
            decayed["sum"].append(weight * seen * mean)
            decayed["mean"].append(mean)
            decayed["deviation"].append(deviation)
            decayed["difference"].append(difference)
            has_z = value == value and deviation > 1e-9 * abs(mean)
            decayed["z"].append(clipped(difference / deviation, 100.0) if has_z else NAN)
            labels = block.label_weight * seen
            decayed["label_count"].append(labels)
            for overall, mine in zip(self.means, block.label_means, strict=True):
                part = labels / (labels + 1.0)
                smooth = overall + part * (mine - overall) if labels > 0 else overall
                decayed["label_mean"].append(smooth)
        return columns + [x for stat in STATS if stat in stats for x in decayed[stat]]

    def enter(self, block, value, keep, mine):
        kept = block.weight * keep
        kept = kept if kept >= 1e-60 else 0.0
        if kept > 0:
            difference = value - block.mean
            part = (mine / (kept + mine)) * difference
            block.mean = block.mean + part
            scatter = block.scatter * keep + kept * part * difference
            block.scatter = scatter if scatter > 1e-200 else 0.0
        else:
            block.mean, block.scatter = value, 0.0
        block.weight = kept + mine

    def replace(self, group, slot, before, label, factors, timed):
        if before in slot.labels:
            slot.labels[slot.labels.index(before)] = label
        for block, (_, keep, mine) in zip(slot.blocks, factors, strict=True):
            if not timed or block.label_weight < mine * (1.0 - 1e-9):
                block.label_weight *= 1.0 if timed else keep
                self.count_label(block, label, mine)
            elif block.label_weight > 0:
                for j, mean in enumerate(block.label_means):
                    part = mine / block.label_weight
                    block.label_means[j] = self.mean_with(mean, part, before, label, j)

    def enter_label(self, group, slot, label, factors):
        """Label weights have decayed."""
        if label == label:
            slot.labels = [label, *slot.labels][: group["labels"]]
        for block, (_, _, mine) in zip(slot.blocks, factors, strict=True):
            self.count_label(block, label, mine)

    def count_label(self, block, label, mine):
        weight = block.label_weight if block.label_weight >= 1e-60 else 0.0
        if label == label and mine > 0:
            for j in range(self.classes):
                target = self.target(label, j)
                if weight > 0:
                    mean = block.label_means[j]
                    target = mean + (mine / (weight + mine)) * (target - mean)
                block.label_means[j] = target
            weight += mine
        block.label_weight = weight


def merged(entries, features, columns):
    """The row {index: number} that has these entries, and the columns at their features."""
    row = dict(entries)
    for j, x in sorted(zip(features, columns, strict=True), key=lambda pair: pair[0]):
        if x is not None and x == x:
            x = clipped(x, LARGEST)
            row[j] = clipped(row[j] + x, LARGEST) if j in row else x
            if row[j] == 0.0:
                del row[j]
    return row

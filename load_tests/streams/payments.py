"""Simulator of card payments with three kinds of fraud, after the Fraud Detection Handbook.

1,500 cards pay at terminals near them for 120 days. Fraud is an amount above 220, every payment at
2 terminals that are chosen each day for 28 days, and a third of the payments of 3 cards that are
chosen each day for 14 days, with five times the amount.
"""

from typing import NamedTuple

import numpy as np

CARDS, TERMINALS, DAYS = 1_500, 3_000, 120
DAY_S = 86_400.0
NEAR = 5.0
SUSPICIOUS = 220.0
SKIMMED_A_DAY, DAYS_OF_A_SKIMMER = 2, 28
COPIED_A_DAY, DAYS_OF_A_COPY = 3, 14


class Payments(NamedTuple):
    """Columns of the payments, in the order of time."""

    seconds: np.ndarray
    """Since the first midnight."""
    cards: np.ndarray
    terminals: np.ndarray
    amounts: np.ndarray
    frauds: np.ndarray

    def first(self, rows: int) -> "Payments":
        return Payments(*(column[:rows] for column in self))


def payments(seed: int = 7) -> Payments:
    """About 348,000 payments, 2.6 % of them fraud."""
    draw = np.random.default_rng(seed)
    homes, terminals = draw.uniform(0, 100, (CARDS, 2)), draw.uniform(0, 100, (TERMINALS, 2))
    means, rates = draw.uniform(5, 100, CARDS), draw.uniform(0, 4, CARDS)
    near = [np.where(((terminals - home) ** 2).sum(1) < NEAR**2)[0] for home in homes]
    rows = []
    for day in range(DAYS):
        counts = draw.poisson(rates)
        for card in np.where(counts > 0)[0]:
            for _ in range(counts[card] if len(near[card]) else 0):
                second = draw.normal(DAY_S / 2, 20_000)
                if not 0 < second < DAY_S:
                    continue
                amount = draw.normal(means[card], means[card] / 2)
                if amount < 0:
                    amount = draw.uniform(0, means[card] * 2)
                terminal = draw.choice(near[card])
                rows.append((day * DAY_S + second, card, terminal, round(amount, 2)))
    seconds, cards, shops, amounts = np.array(sorted(rows)).T
    return _with_frauds(draw, seconds, cards.astype(int), shops.astype(int), amounts)


def _with_frauds(
    draw: np.random.Generator,
    seconds: np.ndarray,
    cards: np.ndarray,
    terminals: np.ndarray,
    amounts: np.ndarray,
) -> Payments:
    amounts = amounts.copy()
    frauds = amounts > SUSPICIOUS
    days = seconds // DAY_S
    for day in range(DAYS):
        for terminal in draw.choice(TERMINALS, SKIMMED_A_DAY, replace=False):
            frauds |= (terminals == terminal) & (days >= day) & (days < day + DAYS_OF_A_SKIMMER)
        for card in draw.choice(CARDS, COPIED_A_DAY, replace=False):
            is_copied = (cards == card) & (days >= day) & (days < day + DAYS_OF_A_COPY)
            rows = np.where(is_copied)[0]
            if len(rows):
                copies = draw.choice(rows, len(rows) // 3, replace=False)
                amounts[copies] *= 5
                frauds[copies] = True
    return Payments(seconds, cards, terminals, amounts, frauds)

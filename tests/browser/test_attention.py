"""The sentences that say what is wrong with a model, and where their links lead."""

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.pages import ON_A_DESKTOP, card, create, learn, named, samples

ROOT = Path(__file__).parents[2]
# Reads each case as the pages do, from two scrapes.
READ = """async (cases) => {
  const { Scrapes, scrape } = await import("/static/js/scrape.js");
  const { statusOf, urgency } = await import("/static/js/status.js");
  const found = [];
  for (const { texts, changes, spec } of cases) {
    const scrapes = new Scrapes();
    for (const text of texts) {
      window.fetch = async () => new Response(text);
      scrapes.add(await scrape());
    }
    const known = { id: "m", spec: { task: "binary", ...spec }, isLoaded: true };
    const status = statusOf({ ...known, ...scrapes.models().get("m"), ...changes });
    found.push([status.attention.map(({ text, href }) => [text, href ?? null]), urgency(status)]);
  }
  return found;
}"""
HEALTHY = {
    'samples_total{model="m",outcome="learned"}': 1500,
    'rolling_error_ratio{model="m"}': 0.1,
    'rolling_auc{model="m"}': 0.6,
    'rolling_baseline_error_ratio{baseline="most_frequent",model="m"}': 0.4,
    'rolling_baseline_error_ratio{baseline="last_label",model="m"}': 0.5,
    'decision_cost{decision="least_cost",model="m"}': 0.2,
    'decision_cost{decision="best_constant",model="m"}': 0.3,
    'interval_recent_coverage{level="0.9",model="m"}': 0.86,
    'column_drift{column="heat",model="m"}': 0.2,
    'refused_rows_total{model="m"}': 5,
    'refused_column_rows_total{column="heat",model="m"}': 5,
    'history_lost_labels_total{group="card",model="m"}': 3,
    'history_lost_labels_total{group="shop",model="m"}': 3,
    'gap_ratio{model="m"}': 0.4,
    'replica_lag_seconds{model="m"}': 20,
    'model_paused{model="m"}': 0,
    'quarantined_records{model="m"}': 0,
    'lost_records_total{model="m"}': 0,
    'forks_total{model="m"}': 0,
    'remembered_expired_total{model="m"}': 0,
}
PAGE = "#/models/m"
# What differs from HEALTHY, in the metrics (after the first scrape) and in what the page knows; and
# the sentence with its link. A sentence of urgency 2 does not move its model up.
CASES = [
    ({}, {"isStoreAway": True, "storeProblem": "disk is full"}, {}, 0,
     "The store is away: disk is full. Learning answers 503 until it is back; predictions go on.",
     None),
    ({}, {"unreadable": "record version 9"}, {}, 0,
     "This server cannot read the model: record version 9.", PAGE),
    ({"lost_records_total": 1}, {}, {}, 0,
     "Since the server started, the store has lost 1 record that this model had learned. The "
     "server's log says after which seq: send these rows again.", None),
    ({"model_paused": 1, "quarantined_records": 2}, {}, {}, 0,
     "Learning is paused by the guard; 2 records wait in quarantine.", PAGE),
    ({"replica_lag_seconds": 45.2}, {}, {}, 1,
     "A worker is 45.2 s behind the journal, so its predictions are old: it lacks CPU time or "
     "cannot read the store.", None),
    ({"rolling_error_ratio": 0.45}, {}, {}, 1,
     "Errs in 45.0 % of the last 1,000 rows, worse than always predicting the most frequent label "
     "(40.0 %).", f"{PAGE}/drift/Drift%20of%20the%20loss"),
    ({"rolling_error_ratio": 0.39}, {}, {"segments": ["site"]}, 1,
     "Errs in 39.0 % of the last 1,000 rows, hardly better than always predicting the most "
     "frequent label (40.0 %).", f"{PAGE}/segments/Segments"),
    ({"rolling_error_ratio": 0.4, "samples_total": 400}, {}, {}, 1,
     "Errs in 40.0 % of the last 400 rows, no better than always predicting the most frequent "
     "label (40.0 %).", f"{PAGE}/drift/Drift%20of%20the%20loss"),
    ({'decision_cost{decision="least_cost"': 0.35, "samples_total": 400}, {}, {}, 1,
     "Decisions cost 0.35 a row of the last 400 rows, more than always the same decision (0.3).",
     f"{PAGE}/overview/Costs"),
    ({"interval_recent_coverage": 0.84}, {}, {}, 1,
     "Only 84.0 % of the last 1,000 labels are within their sets for 90 %.",
     f"{PAGE}/overview/Sets%20of%20labels"),
    ({"interval_recent_coverage": 0.84}, {}, {"task": "regression"}, 1,
     "Only 84.0 % of the last 1,000 labels are within their intervals for 90 %.",
     f"{PAGE}/overview/Intervals"),
    ({"column_drift": 0.31}, {}, {}, 1,
     "Column heat has moved (stability index 0.31, large from 0.25).",
     f"{PAGE}/drift/Drift%20of%20the%20input"),
    ({"refused_rows_total": 105, "refused_column_rows_total": 75}, {}, {}, 1,
     "100.0 % of the rows of the last minute were refused, most for column heat; the answers of "
     "learn have the reasons.", f"{PAGE}/features/Columns"),
    ({'history_lost_labels_total{group="shop"': 30}, {}, {}, 1,
     "2.00 % of the labels came after the history had dropped their key: a group with more keys "
     "keeps them longer.", f"{PAGE}/settings/Specification"),
    ({"forks_total": 2}, {}, {}, 2,
     "The journal contradicted a worker 2 times since the server started; the model was loaded "
     "again.", None),
    ({"remembered_expired_total": 3}, {}, {}, 2,
     "3 predicted rows expired without a label since the server started: REMEMBER_S says how long "
     "rows wait.", None),
    ({"gap_ratio": 0.6}, {}, {}, 2,
     "The certificate is wide: the optimum may be up to 60.0 % below the objective of the "
     "weights.", f"{PAGE}/settings/Refits"),
]  # fmt: skip


def exposition(changed: dict[str, float]) -> str:
    """The text of /metrics: `changed` by the beginnings of series."""
    lines = []
    for series, value in HEALTHY.items():
        values = [new for beginning, new in changed.items() if series.startswith(beginning)]
        lines.append(f"dualstream_{series} {values[0] if values else value}")
    return "\n".join(lines)


@ON_A_DESKTOP
def test_each_sentence_is_shown_while_its_cause_lasts(page: Page):
    shown = (ROOT / "service/static/js/scrape.js").read_text().split("const SHOWN")[1]
    names = " ".join(re.findall(r'"([a-z_ ]+)"', shown.split(");")[0])).split()
    documented = (ROOT / "docs/reference/metrics.md").read_text()
    families = [re.sub("_(bucket|sum)$", "", name) for name in names]
    assert [name for name in families if f"`dualstream_{name}`" not in documented] == []
    page.goto("/livez")  # a page without scripts
    read = [{"texts": [exposition({})] * 2, "changes": {}, "spec": {"segments": ["site"]}}]
    for metrics, changes, spec, *_ in CASES:
        texts = [exposition({}), exposition(metrics)]
        read.append({"texts": texts, "changes": changes, "spec": spec})
    healthy, *others = page.evaluate(READ, read)
    assert healthy == [[], 2]
    expected = [[[[text, href]], urgency] for *_, urgency, text, href in CASES]
    assert others == expected


@ON_A_DESKTOP
def test_a_link_leads_to_the_card_where_one_can_act(page: Page, server):
    model = named(page, "acting")
    spec = {"algorithm": "dual_ascent", "loss": "logistic", "features": "hashed"}
    create(server, model, **spec, alert_rate=0.2, costs={"false_negative": 9})
    learn(server, model, samples(60))
    page.goto(f"/#/models/{model}/overview/Costs")
    expect(card(page, "Costs")).to_be_focused()
    expect(card(page, "Costs")).to_be_in_viewport()
    expect(card(page, "Alerts")).to_contain_text(re.compile(r"precision:?\s*\d"))
    cards = {
        "Columns": "features", "Refits": "settings", "Specification": "settings",
        "Drift of the loss": "drift", "Drift of the input": "drift",
    }  # fmt: skip
    for title, tab in cards.items():
        page.evaluate("hash => (location.hash = hash)", f"#/models/{model}/{tab}/{title}")
        expect(card(page, title)).to_be_focused()
        # The same link works again.
        assert page.evaluate("location.hash") == f"#/models/{model}/{tab}"

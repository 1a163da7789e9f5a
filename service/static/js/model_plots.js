// Plots of a model's metrics: the timeline first, then every event.

import { card, right, table } from "./dom.js";
import { count, percent } from "./format.js";
import { measure, recent } from "./metrics.js";
import { Plot } from "./plots.js";

const MAX_POINTS = 3000;

export class ModelPlots {
  constructor(spec, signal) {
    this.isRegression = spec.task === "regression";
    const format = this.isRegression ? undefined : percent;
    const what = this.isRegression ? "absolute error" : "error rate";
    const baselines = this.isRegression ? ["running mean", "last label"] : ["most frequent", "last label"];
    this.drift = [];
    // Drift and trip counts of the last event. A change means that the timeline has new events.
    this.lastDrift = null;
    // Rows to which the model was rolled back while the page is open.
    this.rollbacks = [];
    const markers = () => [
      ...this.drift.map((event) => ({ x: event.rows, isBad: event.kind === "guard" || event.rising })),
      ...this.rollbacks.map((x) => ({ x, isRollback: true })),
    ];
    this.error = new Plot(
      {
        title: `Progressive ${what}, with two baselines`,
        markers,
        series: [
          { label: "last rows", colour: "--c1", format },
          { label: "since start", colour: "--c3", format },
          { label: baselines[0], colour: "--c4", dash: [4, 4], format },
          { label: baselines[1], colour: "--c2", dash: [4, 4], format },
        ],
      },
      signal,
    );
    this.loss = new Plot(
      {
        title: "Progressive loss",
        markers,
        series: [
          { label: "last rows", colour: "--c1" },
          { label: "since start", colour: "--c3" },
        ],
      },
      signal,
    );
    this.ranking = new Plot(
      {
        title: "AUC and average precision of the last 1,000 rows",
        series: [
          { label: "AUC", colour: "--c1" },
          { label: "average precision", colour: "--c3" },
        ],
      },
      signal,
    );
    this.gap = new Plot(
      {
        title: "Primal and dual objective, and the gap between them",
        series: [
          { label: "primal", colour: "--c1" },
          { label: "dual", colour: "--c2" },
          { label: "gap", colour: "--c4", dash: [4, 4] },
        ],
      },
      signal,
    );
    this.nonzeros = new Plot(
      { title: "Non-zero weights", series: [{ label: "non-zeros", colour: "--c1", format: count }] },
      signal,
    );
    this.support = new Plot(
      {
        title: "Features in use, and changes within the last 1,000 rows",
        series: [
          { label: "features in use", colour: "--c1", format: count },
          { label: "changes per 1,000 rows", colour: "--c2", ownAxis: true },
        ],
      },
      signal,
    );
    this.rate = new Plot(
      {
        title: "Rows learned per second",
        xIsTime: true,
        series: [{ label: "rows per second", colour: "--c1" }],
      },
      signal,
    );
    this.delay = new Plot(
      {
        title: "Seconds from a prediction to its label",
        xIsTime: true,
        series: [{ label: "label delay, s", colour: "--c1" }],
      },
      signal,
    );
    this.rankingCard = card("Ranking", this.ranking.element);
    this.rankingCard.hidden = true;
    this.gapCard = card("Certificate", this.gap.element);
    this.delayCard = card("Label delay", this.delay.element);
    this.delayCard.hidden = true;
    this.supportCard = card("Support changes", this.support.element);
    this.supportCard.hidden = true;
    this.driftCard = card("Drift");
    this.elements = [
      card(`Progressive ${what}`, this.error.element),
      card("Progressive loss", this.loss.element),
      this.rankingCard,
      this.gapCard,
      card("Non-zero weights", this.nonzeros.element),
      this.supportCard,
      card("Speed", this.rate.element),
      this.delayCard,
      this.driftCard,
    ];
    this.rankings = [[], [], []];
    this.gaps = [[], [], [], []];
    this.counts = [[], []];
    this.supports = [[], [], []];
    this.rates = [[], []];
    this.delays = [[], []];
  }

  // Draw the timeline: metrics from before the page was opened.
  begin({ points, events }) {
    this.points = points;
    this.drift = events;
    this.driftCard.replaceChildren(
      this.driftCard.firstChild,
      events.length
        ? table(
            [right("rows"), right("seq"), "detector", "losses"],
            events.toReversed().map((event) => [
              right(count(event.rows)),
              right(count(event.seq)),
              ...(event.kind === "guard"
                ? [`guard (${event.quantity})`, event.paused ? "tripped: paused" : "tripped"]
                : [event.detector.replace("_", "-"), event.rising ? "rose" : "fell"]),
            ]),
            "Drift events, newest first",
          )
        : "No drift detected.",
    );
    this.draw();
  }

  // Add an event. Returns true if the timeline must be fetched again.
  add(event) {
    const last = this.points.at(-1);
    const seen = JSON.stringify([event.drift, event.trips]);
    // The first event, too: the model may have changed after the timeline was read.
    const isOther = seen !== this.lastDrift;
    this.lastDrift = seen;
    if (last && event.samples < last.rows) return true;
    if (event.since_start && event.samples > (last?.rows ?? 0)) {
      this.points.push({ rows: event.samples, since_start: event.since_start });
      if (this.points.length > MAX_POINTS) return true;
      this.draw();
    }
    const now = Date.now() / 1000;
    if (event.rows_per_second != null) this.push(this.rate, this.rates, now, [event.rows_per_second]);
    this.push(this.nonzeros, this.counts, event.samples, [event.nonzeros]);
    if (event.support) {
      this.supportCard.hidden = false;
      const { features, changes_per_1000: changes } = event.support;
      this.push(this.support, this.supports, event.samples, [features, changes]);
    }
    if (event.label_delay_s != null) {
      this.delayCard.hidden = false;
      this.push(this.delay, this.delays, now, [event.label_delay_s]);
    }
    if (event.rolling?.auc != null) {
      this.rankingCard.hidden = false;
      this.push(this.ranking, this.rankings, event.samples, [event.rolling.auc, event.rolling.average_precision]);
    }
    this.gapCard.hidden = event.certificate === null;
    if (event.certificate) {
      const { primal, dual, gap } = event.certificate;
      this.push(this.gap, this.gaps, event.samples, [primal, dual, gap]);
    }
    return isOther;
  }

  push(plot, columns, x, values) {
    // A repeated row count replaces the last point; a smaller one means a rollback.
    const last = columns[0].at(-1);
    if (x === last) columns.forEach((column) => column.pop());
    else if (x < last) columns.forEach((column) => column.splice(0));
    columns[0].push(x);
    values.forEach((value, k) => columns[k + 1].push(value ?? null));
    if (columns[0].length > MAX_POINTS) columns.forEach((column) => column.shift());
    plot.set(columns);
  }

  draw() {
    if (!this.points.length) return;
    const { name, baselines } = measure(this.points.at(-1).since_start);
    const rows = this.points.map((point) => point.rows);
    const of = (read) => this.points.map((point) => read(point) ?? null);
    this.error.set([
      rows,
      recent(this.points, (view) => view[name]),
      of((point) => point.since_start[name]),
      of((point) => baselines(point.since_start)[0].value),
      of((point) => baselines(point.since_start)[1].value),
    ]);
    this.loss.set([
      rows,
      recent(this.points, (view) => view.loss),
      of((point) => point.since_start.loss),
    ]);
  }
}

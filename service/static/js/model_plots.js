// Plots of a model's metrics: the timeline first, then every event.

import { card, choice, h } from "./dom.js";
import { errorOf, lossOf, nameOf, recent, windowOf } from "./errors.js";
import { count, percent } from "./format.js";
import { timeOf } from "./history.js";
import { Plot } from "./charts.js";

const MAX_POINTS = 3000;
// A step of more than this part of the rows is drawn again from the timeline.
const STEPS = 64;

export class ModelPlots {
  constructor(spec, signal) {
    this.isRegression = spec.task === "regression";
    const format = this.isRegression ? undefined : percent;
    const baselines = this.isRegression ? ["running_mean", "last_label"] : ["most_frequent", "last_label"];
    const words = { running_mean: "mean so far", most_frequent: "most frequent label", last_label: "previous label" };
    this.baselines = baselines;
    this.isTime = false;
    // Events of the model, as history.js reads them.
    this.events = [];
    // Drift and trip counts of the last event. A change means that the timeline has new events.
    this.lastDrift = null;
    // Whether the timeline has more points than the events brought.
    this.isCoarse = false;
    const markers = () => this.events;
    const what = nameOf(this.isRegression);
    const title = what[0].toUpperCase() + what.slice(1);
    this.error = new Plot(
      {
        title: `${title} and two baselines`,
        height: 300,
        markers,
        series: [
          { label: "last rows", colour: "--c1", format, isFilled: true },
          { label: "since start", colour: "--c3", format },
          { label: words[baselines[0]], colour: "--c4", dash: [4, 4], format },
          { label: words[baselines[1]], colour: "--c2", dash: [4, 4], format },
        ],
      },
      signal,
    );
    const plot = (title, series, more = {}) => new Plot({ title, series, ...more }, signal);
    this.loss = plot("Progressive loss", [{ label: "last rows", colour: "--c1", isFilled: true }, { label: "since start", colour: "--c3" }], { markers });
    this.ranking = plot("AUC and average precision of the last 1,000 rows",
      [{ label: "AUC", colour: "--c1" }, { label: "average precision", colour: "--c3" }]);
    this.gap = plot("Primal and dual objective, and the gap between them",
      [{ label: "primal", colour: "--c1" }, { label: "dual", colour: "--c2" }, { label: "gap", colour: "--c4", dash: [4, 4] }]);
    this.nonzeros = plot("Non-zero weights", [{ label: "non-zeros", colour: "--c1", format: count }]);
    this.support = plot("Features in use, and changes within the last 1,000 rows",
      [{ label: "features in use", colour: "--c1", format: count }, { label: "changes per 1,000 rows", colour: "--c2", ownAxis: true }]);
    this.rate = plot("Rows learned per second", [{ label: "rows per second", colour: "--c1", isFilled: true }], { xIsTime: true });
    this.delay = plot("Seconds from a prediction to its label", [{ label: "label delay, s", colour: "--c1" }], { xIsTime: true });

    this.unknown = h("p", { class: "small quiet", hidden: true },
      "The server knows times since it loaded the model; rows before that are left out.");
    const axis = choice("Horizontal axis", { rows: "Rows", time: "Time" }, "rows", (chosen) => {
      this.isTime = chosen === "time";
      this.draw();
    });
    this.errorCard = card(title, h("p", { class: "small quiet lead" },
      "Each row is scored before it is learned. Dashed: what simple rules would have reached on the same rows."),
    axis, this.error.element, this.unknown);
    this.errorCard.classList.add("wide", "with-switch");
    this.lossCard = card("Progressive loss", h("p", { class: "small quiet" }, `Mean loss of a row (${lossOf(spec)}), before the row is learned.`), this.loss.element);
    this.rankingCard = card("Ranking", this.ranking.element);
    this.gapCard = card("Certificate", h("p", { class: "small quiet" }, "The optimum of the window lies between the dual and the primal objective."), this.gap.element);
    this.rateCard = card("Speed", this.rate.element);
    this.delayCard = card("Label delay", this.delay.element);
    this.nonzerosCard = card("Sparsity", this.nonzeros.element);
    this.supportCard = card("Support changes", this.support.element);
    for (const one of [this.rateCard, this.rankingCard, this.gapCard, this.delayCard, this.supportCard]) one.hidden = true;
    this.start();
  }

  start() {
    this.points = [];
    this.times = [];
    [this.rates, this.delays] = [[[], []], [[], []]];
    [this.rankings, this.gaps] = [[[], [], []], [[], [], [], []]];
    [this.counts, this.supports] = [[[], []], [[], [], []]];
  }

  begin(timeline, events) {
    this.points = timeline.points;
    this.times = timeline.times;
    this.events = events;
    this.isCoarse = false;
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
    const now = Date.now() / 1000;
    if (last && event.samples > last.rows) {
      this.isCoarse ||= event.samples - last.rows > Math.max(25, event.samples / STEPS);
      this.points.push({ rows: event.samples, since_start: event.since_start });
      this.times.push({ rows: event.samples, time: new Date().toISOString() });
      if (this.points.length > MAX_POINTS) return true;
      this.draw();
    }
    if (event.rows_per_second != null) {
      this.rateCard.hidden = false;
      this.push(this.rate, this.rates, now, [event.rows_per_second]);
    }
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
    this.gapCard.hidden = !event.certificate;
    if (event.certificate) {
      const { primal, dual, gap } = event.certificate;
      this.push(this.gap, this.gaps, event.samples, [primal, dual, gap]);
    }
    return isOther || (!last && event.samples > 0);
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
    const errors = this.points.map((point) => errorOf(point.since_start));
    const rows = this.points.map((point) => point.rows);
    const of = (id) => errors.map((one) => one.baselines.find((other) => other.id === id)?.value ?? null);
    const columns = [
      this.isTime ? rows.map((one) => timeOf(one, this.times)) : rows,
      recent(this.points, (view) => errorOf(view).value),
      errors.map((one) => one.value),
      ...this.baselines.map(of),
    ];
    // The window grows with the stream; the tile above has that of 1,000 rows.
    const last = `last ${count(windowOf(this.points))} rows`;
    this.error.name(0, last);
    this.loss.name(0, last);
    const isKnown = columns[0].map((x) => x !== null);
    this.error.set(columns.map((column) => column.filter((_, k) => isKnown[k])), this.isTime);
    // The first request alone is not worth a note.
    const missing = rows.findLast((_, k) => !isKnown[k]) ?? 0;
    this.unknown.hidden = missing < rows.at(-1) / 20;
    this.loss.set([rows, recent(this.points, (view) => view.loss), this.points.map((point) => point.since_start.loss ?? null)]);
  }
}

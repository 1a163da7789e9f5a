// Plots of a model's metrics: the timeline first, then every event.

import { card, choice, h } from "./dom.js";
import { errorOf, lossOf, nameOf, recent, windowOf } from "./errors.js";
import { count, percent, plural, seconds } from "./format.js";
import { timeOf } from "./history.js";
import { Course, Plot } from "./charts.js";

const MAX_POINTS = 3000;
// A step of more than this part of the rows is drawn again from the timeline.
const STEPS = 64;
const RANGES = { all: "All", rows: "1,000 rows", hour: "Hour", day: "Day" };
const RANGE_ROWS = 1000;
const RANGE_S = { hour: 3600, day: 86_400 };

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
    this.range = "all";
    const begin = (this.first = (xIsTime) => this.firstOf(xIsTime));
    const what = nameOf(this.isRegression);
    const title = what[0].toUpperCase() + what.slice(1);
    this.error = new Plot(
      {
        title: `${title} and two baselines`,
        height: 300,
        markers,
        begin,
        series: [
          { label: "last rows", colour: "--c1", format, isFilled: true },
          { label: "since start", colour: "--c3", format },
          { label: words[baselines[0]], colour: "--c4", dash: [4, 4], format },
          { label: words[baselines[1]], colour: "--c2", dash: [4, 4], format },
        ],
      },
      signal,
    );
    const plot = (title, series, more = {}) => new Course({ title, series, begin, ...more }, signal);
    this.loss = new Plot({ title: "Progressive loss", markers, begin,
      series: [{ label: "last rows", colour: "--c1", isFilled: true }, { label: "since start", colour: "--c3" }] }, signal);
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
      this.error.unzoom();
      this.draw();
    });
    const range = choice("Range of all charts", RANGES, "all", (chosen) => {
      this.range = chosen;
      this.ranged.forEach((one) => one.unzoom());
    });
    this.errorCard = card(title, h("p", { class: "small quiet lead" },
      "Each row is scored before it is learned. Dashed: what simple rules would have reached on the same rows."),
    h("div", { class: "switches" }, range, axis), this.error.element, this.unknown);
    this.errorCard.classList.add("wide", "with-switch");
    this.lossCard = card("Progressive loss", h("p", { class: "small quiet" }, `Mean loss of a row (${lossOf(spec)}), before the row is learned.`), this.loss.element);
    this.rankingCard = card("Ranking", this.ranking.element);
    this.gapCard = card("Certificate", h("p", { class: "small quiet" }, "The optimum of the window lies between the dual and the primal objective."), this.gap.element);
    this.rateCard = card("Speed", this.rate.element);
    this.delayCard = card("Label delay", this.delay.element);
    this.nonzerosCard = card("Sparsity", this.nonzeros.element);
    this.supportCard = card("Support changes", this.support.element);
    for (const one of [this.rateCard, this.rankingCard, this.gapCard, this.delayCard, this.supportCard]) one.hidden = true;
    this.points = [];
    this.times = [];
    // Charts that show the chosen range; other cards add theirs.
    this.ranged = [this.error, this.loss, this.ranking, this.gap, this.nonzeros, this.support, this.rate, this.delay];
  }

  // The first x of the chosen range; null for all, and for a time that is not known.
  firstOf(xIsTime) {
    const last = this.points.at(-1)?.rows ?? 0;
    if (this.range === "rows") return xIsTime ? timeOf(Math.max(0, last - RANGE_ROWS), this.times) : last - RANGE_ROWS;
    const length = RANGE_S[this.range];
    if (!length) return null;
    const since = Date.now() / 1000 - length;
    return xIsTime ? since : this.times.find((one) => seconds(one.time) >= since)?.rows ?? last;
  }

  // `found`: the answer of GET trends.
  showTrends({ rows, series }) {
    const of = (name) => series.find((one) => one.name === name)?.values;
    if (!of("auc")) return;
    this.rankingCard.hidden = false;
    this.ranking.putBefore([rows, of("auc"), of("average_precision")]);
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
      this.rate.add(now, [event.rows_per_second]);
    }
    this.nonzeros.add(event.samples, [event.nonzeros]);
    if (event.support) {
      this.supportCard.hidden = false;
      const { features, changes_per_1000: changes } = event.support;
      this.support.add(event.samples, [features, changes]);
    }
    if (event.label_delay_s != null) {
      this.delayCard.hidden = false;
      this.delay.add(now, [event.label_delay_s]);
    }
    if (event.rolling?.auc != null) {
      this.rankingCard.hidden = false;
      this.ranking.add(event.samples, [event.rolling.auc, event.rolling.average_precision]);
    }
    this.gapCard.hidden = !event.certificate;
    if (event.certificate) {
      const { primal, dual, gap } = event.certificate;
      this.gap.add(event.samples, [primal, dual, gap]);
    }
    return isOther || (!last && event.samples > 0);
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
    const last = `last ${plural(windowOf(this.points), "row")}`;
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

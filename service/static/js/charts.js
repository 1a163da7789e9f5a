// A uPlot chart in the colours of the page and the width of its card, with markers of events.

/* global uPlot */
import { h, svg } from "./dom.js";
import { ago, clock, count, number, percent, plural, share, zone } from "./format.js";

// Intervals of time ticks in seconds.
const STEPS_S = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400, 172800, 604800, 2592000];
// Newest markers that are shown, so that the keyboard reaches what comes after the chart.
const MARKERS = 30;
const SIGNS = { drift: ["▼", "▲"], guard: ["!", "!"], rollback: ["↶", "↶"], version: ["◆", "◆"], promotion: ["★", "★"], other: ["•", "•"] };
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const markerColour = ({ kind, isBad }) =>
  ({ drift: isBad ? "--bad" : "--good", guard: "--bad", rollback: "--c3", version: "--c1", promotion: "--c6" })[kind] ?? "--quiet";

// series: [{label, colour, dash, format, ownAxis, isFilled, isDots, isEdge}]; the last one can have its own axis on the right.
// markers: () => [{kind, isBad, rows, time, seq, text}].
// begin: (xIsTime) => the first x that is shown, or null for all.
// bands: [{series: [high, low], fill}], by numbers of series from 1. With `isLoose` the vertical axis need not begin at 0.
export class Plot {
  constructor({ title, series, xLabel = "rows learned", xIsTime = false, height = 240, markers, begin, bands, isLoose }, signal) {
    this.given = { title, series, xLabel, height, markers, begin, bands, isLoose };
    // The part that was dragged over: [first, last].
    this.zoom = null;
    this.whole = h("button", { type: "button", class: "whole", hidden: true, onclick: () => this.unzoom() }, "Reset zoom");
    this.xIsTime = xIsTime;
    this.data = [[], ...series.map(() => [])];
    this.summary = h("p", { class: "small quiet" }, "No data yet.");
    this.place = h("div", { class: "plot", hidden: true });
    this.overlay = h("ul", { class: "markers", "aria-label": `Events: ${title}` });
    this.element = h("div", { class: "plot-of" }, this.whole, this.place, this.summary);
    const resized = new ResizeObserver(() => this.resize());
    resized.observe(this.place);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const redraw = () => this.chart && this.make();
    dark.addEventListener("change", redraw);
    signal.addEventListener("abort", () => {
      resized.disconnect();
      dark.removeEventListener("change", redraw);
      this.chart?.destroy();
    });
  }

  make() {
    this.chart?.destroy();
    const { title, series, xLabel, height, bands, isLoose } = this.given;
    const isTime = this.xIsTime;
    const format = series[0].format ?? number;
    const shown = format === percent ? share : format;
    const own = series.find((one) => one.ownAxis);
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const options = {
      width: Math.max(this.place.clientWidth, 200),
      height,
      padding: [18, 20, 0, 0], // markers are above the plot
      scales: {
        x: { time: isTime },
        y: { range: (_, low, high) => (isLoose && low != null ? looseRange(low, high) : rangeOfValues(low, high)) },
        ...(own ? { own: {} } : {}),
      },
      cursor: { drag: { x: true, y: false } },
      axes: [
        { ...axis, values: (_, ticks, axisAt, space, step) => ticks.map((tick) => (isTime ? clock(tick, step) : count(tick))), ...(isTime ? { space: 80, incrs: STEPS_S } : {}), label: isTime ? `time, ${zone()}` : xLabel, size: 28, labelSize: 18, labelFont: "12px system-ui" },
        { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : shown(tick))) },
        ...(own
          ? [{ ...axis, scale: "own", side: 1, size: 46, stroke: colour(own.colour), grid: { show: false },
              values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : number(tick))) }]
          : []),
      ],
      series: [
        { label: isTime ? "time" : xLabel, value: (_, x) => (x == null ? "–" : isTime ? clock(x) : count(x)) },
        ...series.map((one) => ({
          label: one.label,
          scale: one.ownAxis ? "own" : "y",
          stroke: colour(one.colour),
          fill: one.isFilled ? `${colour(one.colour)}1a` : undefined,
          width: one.isDots || one.isEdge ? 0 : one.isFilled ? 2 : 1.5,
          dash: one.dash,
          points: { size: 5, show: one.isDots ? true : one.isEdge ? false : undefined, fill: one.isDots ? colour(one.colour) : undefined },
          spanGaps: true,
          value: (_, y) => (one.format ?? number)(y),
        })),
      ],
      hooks: {
        draw: [(chart) => this.drawMarkers(chart)],
        // Without a cursor the legend has the last values.
        setCursor: [() => this.showLast()],
        setSelect: [(chart) => this.zoomTo(chart)],
      },
      bands: (bands ?? []).map((one) => ({ series: one.series, fill: `${colour(one.fill)}26` })),
    };
    this.chart = null;
    this.chart = new uPlot(options, this.data, this.place);
    this.chart.root.querySelector("canvas").setAttribute("aria-hidden", "true");
    // uPlot places the points of the cursor only if it finds another index than that of the legend.
    this.chart.over.addEventListener("mouseenter", () => this.chart.setLegend({ idx: null }, false), true);
    // After that of uPlot, which shows everything.
    this.chart.over.addEventListener("dblclick", () => this.unzoom());
    this.chart.over.setAttribute("role", "img");
    this.chart.over.setAttribute("aria-label", title);
    this.chart.root.querySelector(".u-wrap").append(this.overlay);
  }

  set(data, xIsTime = this.xIsTime) {
    this.data = data;
    // One point is no curve: its values are text.
    const isCurve = data[0].length > 1;
    this.place.hidden = !isCurve;
    this.summary.classList.toggle("offscreen", isCurve);
    if (isCurve && (!this.chart || xIsTime !== this.xIsTime)) {
      this.xIsTime = xIsTime;
      this.make();
    } else if (isCurve) this.chart.setData(data, false);
    this.showRange();
    this.showLast();
    const last = (column) => column.findLast((value) => value != null);
    const values = this.given.series
      .map((one, k) => [one, last(data[k + 1])])
      .filter(([, value]) => Number.isFinite(value))
      .map(([one, value]) => `${one.label} ${(one.format ?? number)(value)}`);
    this.summary.textContent = values.length ? `Now: ${values.join(", ")}.` : "No data yet.";
  }

  // uPlot zooms after this.
  zoomTo({ select, posToVal }) {
    if (!(select.width > 0)) return;
    this.zoom = [posToVal(select.left, "x"), posToVal(select.left + select.width, "x")];
    this.whole.hidden = false;
  }

  unzoom() {
    this.zoom = null;
    this.whole.hidden = true;
    this.showRange();
  }

  // Shows the part that was dragged over, else that of `begin`, which has two points at least.
  showRange() {
    const xs = this.data[0];
    if (!this.chart || xs.length < 2) return;
    const first = Math.min(this.given.begin?.(this.xIsTime) ?? xs[0], xs.at(-2));
    const [min, max] = this.zoom ?? [Math.max(first, xs[0]), xs.at(-1)];
    this.chart.setScale("x", { min, max });
  }

  // Gives a series another label.
  name(k, label) {
    this.given.series[k].label = label;
    if (!this.chart) return;
    this.chart.series[k + 1].label = label;
    this.chart.root.querySelectorAll(".u-legend .u-series")[k + 1].querySelector(".u-label").textContent = label;
  }

  showLast() {
    if (this.chart && this.chart.cursor.idx == null) this.chart.setLegend({ idx: this.data[0].length - 1 }, false);
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.chart && width > 0 && width !== this.chart.width) this.chart.setSize({ width, height: this.given.height });
  }

  // A line on the canvas for each event, and above it a sign that can be hovered and focused.
  drawMarkers(chart) {
    const { ctx, bbox } = chart;
    const [start, end] = [chart.scales.x.min, chart.scales.x.max];
    const markers = (this.given.markers?.() ?? [])
      // A rollback leaves events after the last row; they are at the last row.
      .map((marker) => ({ ...marker, x: this.xIsTime ? marker.time : Math.min(marker.rows, chart.data[0].at(-1)) }))
      .filter(({ x }) => x != null && x >= start && x <= end)
      .slice(-MARKERS)
      .toSorted((a, b) => a.x - b.x);
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    for (const marker of markers) {
      const x = Math.round(chart.valToPos(marker.x, "x", true));
      ctx.strokeStyle = colour(markerColour(marker));
      ctx.setLineDash(marker.isBad ? [] : [4 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
    const texts = JSON.stringify(markers.map((one) => [one.seq, one.text]));
    if (texts !== this.markersShown) {
      this.markersShown = texts;
      this.overlay.replaceChildren(...markers.map(markerSign));
    }
    let taken = -Infinity;
    markers.forEach((marker, k) => {
      // Signs at one row are next to each other.
      const left = Math.max(bbox.left / devicePixelRatio + chart.valToPos(marker.x, "x"), taken + 18);
      taken = left;
      const item = this.overlay.children[k];
      item.style.left = `${left}px`;
      item.classList.toggle("from-right", left > chart.width / 2);
    });
  }
}

function markerSign(marker) {
  const where = `at ${plural(marker.rows, "row")}, seq ${count(marker.seq)}${marker.time == null ? "" : `, ${ago(marker.time)}`}`;
  const label = `${marker.text}, ${where}`;
  return h("li", {},
    h("button", { type: "button", class: `marker ${marker.kind} ${marker.isBad ? "bad" : ""}`, "aria-label": label },
      h("span", { "aria-hidden": "true" }, SIGNS[marker.kind][Number(marker.isBad)])),
    h("span", { class: "tip", "aria-hidden": "true" }, h("strong", {}, marker.text), h("span", {}, where)));
}

// From 0, so that heights compare, with room above.
function rangeOfValues(low, high) {
  if (low == null) return [0, 1];
  const [bottom, top] = [Math.min(0, low), Math.max(0, high)];
  const room = 0.06 * (top - bottom) || 0.1;
  return [bottom < 0 ? bottom - room : 0, top + (top > 0 ? room : 0) || 1];
}

// With room on both sides.
function looseRange(low, high) {
  const room = 0.06 * (high - low) || Math.abs(high) || 1;
  return [low - room, high + room];
}

const MAX_POINTS = 3000;

// A plot of figures that events bring one by one, after those that the server has kept.
export class Course extends Plot {
  constructor(given, signal) {
    super(given, signal);
    this.columns = [[], ...given.series.map(() => [])];
  }

  add(x, values) {
    // A repeated x replaces the last point; a smaller one means a rollback.
    const last = this.columns[0].at(-1);
    if (x === last) this.columns.forEach((column) => column.pop());
    else if (x < last) this.columns.forEach((column) => column.splice(0));
    [x, ...values].forEach((value, k) => this.columns[k].push(value ?? null));
    if (this.columns[0].length > MAX_POINTS) this.columns.forEach((column) => column.shift());
    this.set(this.columns);
  }

  // Puts points before the first one: `columns` of x, and of the first series or all.
  putBefore(columns) {
    const first = this.columns[0][0] ?? Infinity;
    const isOlder = columns[0].map((x) => x < first);
    if (!isOlder.includes(true)) return;
    this.columns = this.columns.map((own, k) => [...(columns[k] ?? columns[0].map(() => null)).filter((_, at) => isOlder[at]), ...own]);
    this.set(this.columns);
  }
}

const [WIDTH, HEIGHT] = [1000, 220];

// Shares that sum to 1 as stacked areas with axes. `points`: [{x, shares: {name: share}}], two at least; `names` from
// the bottom up, with the class of its colour each.
export function stackedShares(points, names, label) {
  const drawn = points;
  const [start, end] = [drawn[0].x, drawn.at(-1).x];
  const across = (x) => (WIDTH * (x - start)) / (end - start || 1);
  const below = drawn.map(() => 0);
  const areas = names.map(({ name, colour: kind }) => {
    const low = drawn.map((point, k) => `${across(point.x).toFixed(1)},${(HEIGHT * (1 - below[k])).toFixed(1)}`);
    drawn.forEach((point, k) => (below[k] += point.shares[name] ?? 0));
    const high = drawn.map((point, k) => `${across(point.x).toFixed(1)},${(HEIGHT * (1 - below[k])).toFixed(1)}`);
    return svg("polygon", { class: kind, points: [...low, ...high.toReversed()].join(" ") });
  });
  return h("div", { class: "shares-of" },
    h("div", { class: "ticks", "aria-hidden": "true" }, ["100 %", "50 %", "0"].map((one) => h("span", {}, one))),
    svg("svg", { class: "shares", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, areas),
    h("div", { class: "ends quiet", "aria-hidden": "true" }, h("span", {}, count(start)), h("span", {}, "rows learned"), h("span", {}, count(end))));
}

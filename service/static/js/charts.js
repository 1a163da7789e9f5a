// A uPlot chart in the colours of the page and the width of its card; follows changes of both.

/* global uPlot */
import { h } from "./dom.js";
import { clock, count, number, percent, share } from "./format.js";

const HEIGHT = 250;
// Intervals of time ticks in seconds.
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// series: [{label, colour, dash, format, ownAxis}]; the last one can have its own axis on the right.
// markers: () => [{x, isBad}]; bad ones are solid.
export class Plot {
  constructor({ title, series, xLabel = "rows learned", xIsTime = false, log = false, markers }, signal) {
    this.given = { title, series, xLabel, xIsTime, log, markers };
    this.data = [[], ...series.map(() => [])];
    this.summary = h("p", { class: "small quiet" }, "No data yet.");
    this.place = h("div", { class: "plot", role: "img", "aria-label": title, hidden: true });
    this.key = h("div", { class: "small quiet", hidden: true }, "Vertical lines: drift, ",
      h("span", { class: "bad" }, "worse (solid)"), " or ", h("span", { class: "good" }, "better (dashed)"), "; grey: rollback.");
    this.element = h("div", {}, this.place, this.summary, this.key);
    const resized = new ResizeObserver(() => this.resize());
    resized.observe(this.place);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const redraw = () => this.make();
    dark.addEventListener("change", redraw);
    signal.addEventListener("abort", () => {
      resized.disconnect();
      dark.removeEventListener("change", redraw);
      this.chart?.destroy();
    });
  }

  make() {
    this.chart?.destroy();
    const { title, series, xLabel, xIsTime, log, markers } = this.given;
    const format = series[0].format ?? number;
    const shown = format === percent ? share : format;
    this.place.hidden = false;
    const own = series.find((one) => one.ownAxis);
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false } };
    const options = {
      width: Math.max(this.place.clientWidth, 200),
      height: HEIGHT,
      scales: { x: { time: xIsTime, range: (chart, low, high) => rangeOf(chart.data[0], low, high, xIsTime) }, y: { distr: log ? 3 : 1 }, ...(own ? { own: {} } : {}) },
      cursor: { drag: { x: true, y: false } },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map(xIsTime ? clock : count), ...(xIsTime ? { space: 80, incrs: STEPS_S } : {}), label: xIsTime ? undefined : xLabel, labelSize: 20, labelFont: "12px system-ui" },
        { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : shown(tick))) },
        ...(own
          ? [{ ...axis, scale: "own", side: 1, size: 46, stroke: colour(own.colour), grid: { show: false },
              values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : number(tick))) }]
          : []),
      ],
      series: [
        { label: xIsTime ? "time" : xLabel, value: (_, x) => (x == null ? "–" : xIsTime ? clock(x) : count(x)) },
        ...series.map((one) => ({
          label: one.label,
          scale: one.ownAxis ? "own" : "y",
          stroke: colour(one.colour),
          width: 1.6,
          dash: one.dash,
          points: { size: 5 },
          spanGaps: true,
          value: (_, y) => (one.format ?? number)(y),
        })),
      ],
      hooks: { draw: [(chart) => drawMarkers(chart, markers?.() ?? [])] },
    };
    this.chart = new uPlot(options, this.data, this.place);
    this.place.setAttribute("aria-label", title);
  }

  set(data) {
    this.data = data;
    if (!this.chart) this.make();
    else this.chart.setData(data);
    const last = (column) => column.findLast((value) => value != null);
    const values = this.given.series
      .map((one, k) => [one, last(data[k + 1])])
      .filter(([, value]) => Number.isFinite(value))
      .map(([one, value]) => `${one.label} ${(one.format ?? number)(value)}`);
    this.summary.textContent = values.length ? `Now: ${values.join(", ")}.` : "No data yet.";
    this.key.hidden = !this.given.markers?.().length;
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.chart && width > 0 && width !== this.chart.width) this.chart.setSize({ width, height: HEIGHT });
  }
}

// A single point is at the end of its axis, which begins at 0 rows or one minute before. uPlot
// makes an axis to twice the rows, or to the next day.
function rangeOf(xs, low, high, isTime) {
  if (xs.length !== 1) return [low, high];
  return [isTime ? xs[0] - 60 : Math.min(0, xs[0] - 1), xs[0]];
}

function drawMarkers(chart, markers) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  for (const marker of markers) {
    // After a rollback an event can lie after the last row: draw it at the last row.
    const x = Math.round(chart.valToPos(Math.min(marker.x, chart.data[0].at(-1)), "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = colour(marker.isRollback ? "--quiet" : marker.isBad ? "--bad" : "--good");
    ctx.setLineDash(marker.isBad ? [] : [4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

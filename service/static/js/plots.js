// uPlot in the colours of the page, as wide as its card, drawn anew when either changes.

/* global uPlot */
import { h } from "./dom.js";
import { count, number } from "./format.js";

const HEIGHT = 250;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// series: [{label, colour, dash, format, ownAxis}], of which the last may have an axis of its own on
// the right; markers: () => [{x, label, colour}]
export class Plot {
  constructor({ title, series, xLabel = "rows learned", xIsTime = false, log = false, markers }, signal) {
    this.given = { title, series, xLabel, xIsTime, log, markers };
    this.data = [[], ...series.map(() => [])];
    this.summary = h("p", { class: "small quiet" }, "No data yet.");
    this.place = h("div", { class: "plot", role: "img", "aria-label": title });
    this.element = h("div", {}, this.place, this.summary);
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
    const shown = series[0].format ?? number;
    const own = series.find((one) => one.ownAxis);
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false } };
    const options = {
      width: Math.max(this.place.clientWidth, 200),
      height: HEIGHT,
      scales: { x: { time: xIsTime }, y: { distr: log ? 3 : 1 }, ...(own ? { own: {} } : {}) },
      cursor: { drag: { x: true, y: false } },
      axes: [
        { ...axis, ...(xIsTime ? {} : { values: (_, ticks) => ticks.map(count) }), label: xIsTime ? undefined : xLabel, labelSize: 20, labelFont: "12px system-ui" },
        { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : shown(tick))) },
        ...(own
          ? [{ ...axis, scale: "own", side: 1, size: 46, stroke: colour(own.colour), grid: { show: false },
              values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : number(tick))) }]
          : []),
      ],
      series: [
        { label: xIsTime ? "time" : xLabel, ...(xIsTime ? {} : { value: (_, x) => count(x) }) },
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
    const told = this.given.series
      .map((one, k) => [one, last(data[k + 1])])
      .filter(([, value]) => value != null)
      .map(([one, value]) => `${one.label} ${(one.format ?? number)(value)}`);
    this.summary.textContent = told.length ? `Now: ${told.join(", ")}.` : "No data yet.";
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.chart && width > 0 && width !== this.chart.width) this.chart.setSize({ width, height: HEIGHT });
  }
}

function drawMarkers(chart, markers) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  for (const marker of markers) {
    const x = Math.round(chart.valToPos(marker.x, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = colour(marker.colour);
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

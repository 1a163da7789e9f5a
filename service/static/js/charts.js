// A uPlot chart in the colours of the page and the width of its card, with markers of events.

/* global uPlot */
import { h, svg } from "./dom.js";
import { ago, clock, count, number, percent, share, zone } from "./format.js";

// Intervals of time ticks in seconds.
const STEPS_S = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400, 172800, 604800, 2592000];
// Newest markers that are shown, so that the keyboard reaches what comes after the chart.
const MARKERS = 30;
const SIGNS = { drift: ["▼", "▲"], guard: ["!", "!"], rollback: ["↶", "↶"], version: ["◆", "◆"], promotion: ["★", "★"], other: ["•", "•"] };
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const markerColour = ({ kind, isBad }) =>
  ({ drift: isBad ? "--bad" : "--good", guard: "--bad", rollback: "--c3", version: "--c1", promotion: "--c6" })[kind] ?? "--quiet";

// series: [{label, colour, dash, format, ownAxis}]; the last one can have its own axis on the right.
// markers: () => [{kind, isBad, rows, time, seq, text}].
export class Plot {
  constructor({ title, series, xLabel = "rows learned", xIsTime = false, height = 240, markers }, signal) {
    this.given = { title, series, xLabel, height, markers };
    this.xIsTime = xIsTime;
    this.data = [[], ...series.map(() => [])];
    this.summary = h("p", { class: "small quiet" }, "No data yet.");
    this.place = h("div", { class: "plot", hidden: true });
    this.overlay = h("ul", { class: "markers", "aria-label": `Events: ${title}` });
    this.element = h("div", {}, this.place, this.summary);
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
    const { title, series, xLabel, height } = this.given;
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
        y: { range: (_, low, high) => rangeOfValues(low, high) },
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
          width: one.isFilled ? 2 : 1.5,
          dash: one.dash,
          points: { size: 5 },
          spanGaps: true,
          value: (_, y) => (one.format ?? number)(y),
        })),
      ],
      hooks: {
        draw: [(chart) => this.drawMarkers(chart)],
        // Without a cursor the legend has the last values.
        setCursor: [() => this.showLast()],
      },
    };
    this.chart = null;
    this.chart = new uPlot(options, this.data, this.place);
    this.chart.root.querySelector("canvas").setAttribute("aria-hidden", "true");
    // uPlot places the points of the cursor only if it finds another index than that of the legend.
    this.chart.over.addEventListener("mouseenter", () => this.chart.setLegend({ idx: null }, false), true);
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
    } else if (isCurve) this.chart.setData(data);
    this.showLast();
    const last = (column) => column.findLast((value) => value != null);
    const values = this.given.series
      .map((one, k) => [one, last(data[k + 1])])
      .filter(([, value]) => Number.isFinite(value))
      .map(([one, value]) => `${one.label} ${(one.format ?? number)(value)}`);
    this.summary.textContent = values.length ? `Now: ${values.join(", ")}.` : "No data yet.";
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
  const where = `at ${count(marker.rows)} rows, seq ${count(marker.seq)}${marker.time == null ? "" : `, ${ago(marker.time)}`}`;
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

const [WIDTH, HEIGHT] = [1000, 220];

// Shares that sum to 1 as stacked areas. `points`: [{x, shares: {name: share}}]; `names` from the bottom
// up, with the class of its colour each. A single point is drawn over the whole width.
export function stackedShares(points, names, label) {
  const drawn = points.length > 1 ? points : [{ ...points[0], x: 0 }, { ...points[0], x: 1 }];
  const [start, end] = [drawn[0].x, drawn.at(-1).x];
  const across = (x) => (WIDTH * (x - start)) / (end - start || 1);
  const below = drawn.map(() => 0);
  const areas = names.map(({ name, colour: kind }) => {
    const low = drawn.map((point, k) => `${across(point.x).toFixed(1)},${(HEIGHT * (1 - below[k])).toFixed(1)}`);
    drawn.forEach((point, k) => (below[k] += point.shares[name] ?? 0));
    const high = drawn.map((point, k) => `${across(point.x).toFixed(1)},${(HEIGHT * (1 - below[k])).toFixed(1)}`);
    return svg("polygon", { class: kind, points: [...low, ...high.toReversed()].join(" ") });
  });
  return svg("svg", { class: "shares", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, areas);
}

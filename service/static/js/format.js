// Formats numbers, ratios, sizes and times for display.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const brief = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const count = (value) => (value == null ? "–" : whole.format(value));

export const plural = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;

export function number(value) {
  if (value == null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(3).replace(/\.?0+e/, "e");
  return short.format(value || 0); // no -0
}

export const percent = (ratio) =>
  ratio == null || Number.isNaN(ratio) ? "–" : `${(100 * ratio).toFixed(Math.abs(ratio) < 0.1 ? 2 : 1)} %`;

// A percentage on an axis, where ticks are round numbers.
export const share = (ratio) => `${number(100 * ratio)} %`;

export const rate = (perSecond) =>
  perSecond == null ? "–" : perSecond >= 100 ? whole.format(Math.round(perSecond)) : brief.format(perSecond);

export function bytes(size) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = size < 1 ? 0 : Math.min(Math.floor(Math.log10(size) / 3), units.length - 1);
  return `${brief.format(size / 1000 ** power)} ${units[power]}`;
}

export function duration(seconds) {
  if (seconds < 1) return `${brief.format(1000 * seconds)} ms`;
  if (seconds < 120) return `${brief.format(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`;
}

// Time since a moment, in seconds since 1970. The clocks of server and browser can differ a little.
export function ago(at, now = Date.now() / 1000) {
  const passed = Math.max(0, Math.round(now - at));
  return passed < 5 ? "just now" : `${duration(passed)} ago`;
}

// Time of day; with parts of a second where the step of an axis has them, and the day where it is one.
export function clock(seconds, step = 1) {
  const at = new Date(1000 * seconds);
  if (step >= 86_400) return dayOf(at);
  const whole = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
  return step < 1 ? `${whole}.${String(at.getMilliseconds()).padStart(3, "0").slice(0, step < 0.1 ? 2 : 1)}` : whole;
}

const dayOf = (at) => [at.getFullYear(), two(at.getMonth() + 1), two(at.getDate())].join("-");

const two = (value) => String(value).padStart(2, "0");

// The zone of the browser at a moment: UTC, UTC+01:00.
export function zone(at = new Date()) {
  const minutes = -at.getTimezoneOffset();
  const size = Math.abs(minutes);
  return minutes === 0 ? "UTC" : `UTC${minutes < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}

// Date and time in the zone of the browser: 2026-05-04 13:06:09 UTC+02:00.
export function time(iso) {
  const at = new Date(iso);
  return `${dayOf(at)} ${[at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":")} ${zone(at)}`;
}

export const seconds = (iso) => new Date(iso).getTime() / 1000;

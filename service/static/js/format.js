// Formats numbers, ratios and times for display.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

export const count = (value) => (value == null ? "–" : whole.format(value));

export function number(value) {
  if (value == null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(3) : short.format(value || 0); // no -0
}

export const percent = (ratio) =>
  ratio == null || Number.isNaN(ratio) ? "–" : `${(100 * ratio).toFixed(ratio < 0.1 ? 2 : 1)} %`;

// A percentage on an axis, where ticks are round numbers.
export const share = (ratio) => `${number(100 * ratio)} %`;

export const clock = (seconds) =>
  new Date(1000 * seconds).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export const time = (iso) => new Date(iso).toLocaleString();

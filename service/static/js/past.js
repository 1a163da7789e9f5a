// Columns of a specification with `history`: those that the groups read, and those that they compute.

const OF_VALUES = ["last", "change", "sum", "mean", "deviation", "difference", "z"];
const OF_ROWS = ["since", "labels", "count", "label_count", "label_mean"];

export const keysOf = ({ history }) => new Set((history ?? []).flatMap((group) => group.by));

// Returns whether a name is that of a column that the history computes.
export function computedBy({ history }) {
  const beginnings = (history ?? []).flatMap(({ by, time, of }) => {
    const key = by.join("*");
    const values = [key, of].filter(Boolean).join(".");
    return [...OF_VALUES.map((stat) => `${values}.${stat}`), ...OF_ROWS.map((stat) => `${key || of || time}.${stat}`)];
  });
  return (name) => beginnings.some((one) => name === one || name.startsWith(`${one}.`));
}

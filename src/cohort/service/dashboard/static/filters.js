// The language of filters: words and comparisons such as `r=16 learning_rate>1e-4 running`.

const COMPARISON = /^([\w.]+)(<=|>=|!=|=|<|>)(.+)$/;
const OWN = { trial: "id", loss: "loss", best: "best", steps: "steps", place: "place", tokens: "tokens" };

function test(word) {
  const found = COMPARISON.exec(word);
  if (!found) {
    const text = word.toLowerCase();
    return (row) => row.state.toLowerCase().includes(text) || String(row.id) === text;
  }
  const [, name, sign, wanted] = found;
  return (row) => {
    const value = name in row.parameters ? row.parameters[name] : row[OWN[name] ?? name];
    if (value === undefined || value === null) return sign === "!=";
    const [a, b] = [Number(value), Number(wanted)];
    const areNumbers = typeof value !== "boolean" && wanted.trim() !== "" && Number.isFinite(a) && Number.isFinite(b);
    if (!areNumbers) {
      const text = typeof value === "object" ? JSON.stringify(value) : String(value);
      return sign === "=" ? text === wanted : sign === "!=" ? text !== wanted : false;
    }
    return { "=": a === b, "!=": a !== b, "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b }[sign];
  };
}

/** Return a function that says whether a row of trials passes a filter. */
export function filterOf(text) {
  const tests = (text ?? "").split(/\s+/).filter(Boolean).map(test);
  return (row) => tests.every((passes) => passes(row));
}

/** Return the hyperparameters that differ between rows, in their order. */
export function varied(rows) {
  const seen = new Map();
  for (const row of rows) {
    for (const [name, value] of Object.entries(row.parameters)) {
      if (!seen.has(name)) seen.set(name, new Set());
      seen.get(name).add(JSON.stringify(value));
    }
  }
  return [...seen].filter(([name, values]) => values.size > 1 || rows.some((row) => !(name in row.parameters))).map(([name]) => name);
}

/** Return the filter with `name=value` in it, or without if it is there. */
export function toggled(text, part) {
  const words = (text ?? "").split(/\s+/).filter(Boolean);
  return (words.includes(part) ? words.filter((word) => word !== part) : [...words, part]).join(" ");
}

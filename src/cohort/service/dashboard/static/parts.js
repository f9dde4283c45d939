// Small parts that several pages share.
import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { isDark } from "./chart.js";
import { number } from "./format.js";

/** What went wrong, and what to do. */
export function Failure({ error, again }) {
  if (!error) return null;
  return html`<div class="error" role="alert"><strong>${error.message}</strong>
    ${again ? html`<div class="row"><button onClick=${again}>Try again</button></div>` : ""}</div>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h2 style=${{ marginTop: 0 }}>${title}</h2>${children}</div>`;
}

/** The page's title in the browser's tab. */
export function useTitle(title) {
  useEffect(() => { document.title = title ? `${title} · Cohort` : "Cohort"; }, [title]);
}

export function useDark() {
  const [dark, setDark] = useState(isDark());
  useEffect(() => {
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(scheme.matches);
    scheme.addEventListener("change", changed);
    return () => scheme.removeEventListener("change", changed);
  }, []);
  return dark;
}

export function Card({ title, value, children }) {
  // a word that a card of a phone cannot hold is smaller, and not broken
  const isLong = typeof value === "string" && value.split(" ").some((word) => word.length > 11);
  return html`<div class="card"><h2>${title}</h2><div class=${`big ${isLong ? "long" : ""}`}>${value}</div>${children}</div>`;
}

export function Meter({ share, label }) {
  const percent = Math.max(0, Math.min(100, 100 * (share ?? 0)));
  return html`<div class="meter" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(percent)}>
    <span style=${{ width: `${percent}%` }}></span></div>`;
}

/** How the best value came about, as a small curve. */
export function Spark({ points, label }) {
  const known = (points ?? []).filter(([, value]) => value !== null);
  if (known.length < 2) return null;
  const [xs, ys] = [known.map(([x]) => x), known.map(([, y]) => y)];
  const [left, right, low, high] = [xs[0], xs.at(-1), Math.min(...ys), Math.max(...ys)];
  const at = ([x, y]) => [2 + (116 * (x - left)) / (right - left || 1), 25 - (22 * (y - low)) / (high - low || 1)];
  // a best value stays until there is a better one
  const path = known.map(at).map(([x, y], index) => (index ? `H${x.toFixed(1)}V${y.toFixed(1)}` : `M${x.toFixed(1)} ${y.toFixed(1)}`)).join("");
  return html`<svg class="spark" viewBox="0 0 120 28" role="img" aria-label=${`${label}: from ${number(ys[0])} to ${number(ys.at(-1))}`}><path d=${path} /></svg>`;
}

/** A head of a column that sorts by it. */
export function Sorted({ name, sort, onSort, numeric, children }) {
  const own = sort?.replace(/^-/, "") === name;
  const turn = own ? (sort.startsWith("-") ? "descending" : "ascending") : "none";
  return html`<th class=${numeric ? "n" : ""} aria-sort=${turn} scope="col">
    <button onClick=${() => onSort(own && !sort.startsWith("-") ? `-${name}` : name)}>${children}</button></th>`;
}

/** Sort rows by what `value` finds; rows without one come last either way. */
export function sorted(rows, value, isDown) {
  return [...rows].sort((a, b) => {
    const [one, other] = [value(a), value(b)];
    const [noOne, noOther] = [one === null || one === undefined, other === null || other === undefined];
    if (noOne || noOther) return noOne - noOther;
    const order = typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), undefined, { numeric: true });
    return isDown ? -order : order;
  });
}

// How hyperparameters and results go together: parallel coordinates, and a drawing for each hyperparameter.
import { html, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { axis } from "./axes.js";
import { colour, mark, savePng, useCanvas } from "./chart.js";
import { number, setting } from "./format.js";

const MOST_BANDS = 12, MOST_LABELS = 9, NEAR = 14;

/** The distinct values of a hyperparameter in their order. */
function values(rows, name) {
  const distinct = new Map(rows.map((row) => [JSON.stringify(row.parameters[name] ?? null), row.parameters[name] ?? null]));
  const found = [...distinct.values()];
  return found.every((value) => typeof value === "number") ? found.sort((a, b) => a - b) : found.sort((a, b) => String(a).localeCompare(String(b)));
}

/** Results as heights from 0 to 1, better ones higher; the worst tenth shares the foot. */
function heights(rows, maximize) {
  const costs = rows.map((row) => (maximize ? -row.best : row.best));
  const ordered = [...costs].sort((a, b) => a - b);
  const [low, high] = [ordered[0], ordered[Math.floor(0.9 * (ordered.length - 1))]];
  return { of: costs.map((cost) => Math.max(0, 1 - (cost - low) / (high - low || 1))), low, high };
}

function useTones(outcomes, dark) {
  return (row, isBest) => (isBest ? colour("--ink") : outcomes[row.outcome].colours[dark ? 1 : 0]);
}

export function Parallel({ rows, axes, outcomes, metric, best, hot, onHot, onPick, dark }) {
  const [tip, setTip] = useState(null);
  const lines = useRef([]);
  const known = useMemo(() => rows.filter((row) => row.best !== null), [rows]);
  const columns = useMemo(() => axes.map(({ name }) => { const found = values(known, name); return { name, found, place: new Map(found.map((value, index) => [JSON.stringify(value), (index + 0.5) / found.length])) }; }), [known, axes]);
  const height = 320, tone = useTones(outcomes, dark);
  const [canvas, width] = useCanvas((context, size) => {
    if (known.length < 2) return;
    const [left, right, top, base] = [70, size.width - 70, 34, height - 14];
    const { of, low, high } = heights(known, metric.maximize);
    const xs = [...columns, null].map((_, index) => left + ((right - left) * index) / columns.length);
    const y = (place) => base - place * (base - top);
    lines.current = known.map((row, index) => ({ row, ys: [...columns.map((column) => y(column.place.get(JSON.stringify(row.parameters[column.name] ?? null)))), y(of[index])], xs }));
    const rank = (row) => (row.id === hot ? 2 : row.id === best ? 1 : 0);
    for (const { row, ys } of [...lines.current].sort((a, b) => rank(a.row) - rank(b.row))) {
      context.strokeStyle = tone(row, row.id === best);
      context.globalAlpha = row.id === hot ? 1 : hot !== null ? 0.15 : row.id === best ? 1 : 0.45;
      context.lineWidth = row.id === hot ? 3 : row.id === best ? 2.4 : 1.1;
      context.beginPath(); context.moveTo(xs[0], ys[0]);
      // a curve leaves each axis at a right angle: such lines are easier to tell apart
      for (let index = 1; index < xs.length; index++) { const middle = (xs[index - 1] + xs[index]) / 2; context.bezierCurveTo(middle, ys[index - 1], middle, ys[index], xs[index], ys[index]); }
      context.stroke();
    }
    context.globalAlpha = 1; context.lineWidth = 1;
    const [soft, paper] = [colour("--soft"), colour("--paper")];
    const label = (text, x, at, align) => { context.textAlign = align; context.lineWidth = 3; context.strokeStyle = paper; context.strokeText(text, x, at); context.fillStyle = soft; context.fillText(text, x, at); };
    xs.forEach((x, index) => {
      context.strokeStyle = soft; context.lineWidth = 1; context.beginPath(); context.moveTo(x, top); context.lineTo(x, base); context.stroke();
      const isLast = index === columns.length;
      context.font = "600 12px system-ui, sans-serif"; context.textBaseline = "middle";
      const name = isLast ? (size.width < 600 ? "best" : `best ${metric.label}`) : columns[index].name;
      label(name, isLast ? size.width - 4 : index ? x : 4, 14, isLast ? "right" : index ? "center" : "left");
      context.font = "11px system-ui, sans-serif";
      if (isLast) { const sign = metric.maximize ? -1 : 1; label(number(sign * low), x + 6, y(1), "left"); if (high > low) label(`${metric.maximize ? "≤" : "≥"} ${number(sign * high, 3)}`, x + 6, y(0), "left"); return; }
      const every = Math.ceil(columns[index].found.length / MOST_LABELS);
      columns[index].found.forEach((value, place) => { if (place % every === 0) label(setting(value).slice(0, 16), x - 5, y((place + 0.5) / columns[index].found.length) - (index ? 6 : 0), "right"); });
    });
  }, height, [known, columns, hot, best, dark]);
  if (columns.length < 2 || known.length < 2) return html`<p class="note">Lines are drawn once two trials have been evaluated and two hyperparameters differ.</p>`;
  const found = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const [atX, atY] = [event.clientX - box.left, event.clientY - box.top];
    let nearest = null, least = NEAR;
    for (const { row, xs, ys } of lines.current) {
      const index = xs.findIndex((x) => x >= atX);
      if (index < 1) continue;
      // the curve between two axes: the same smooth step as it is drawn with
      const share = (atX - xs[index - 1]) / (xs[index] - xs[index - 1]);
      const far = Math.abs(ys[index - 1] + (ys[index] - ys[index - 1]) * share * share * (3 - 2 * share) - atY);
      if (far < least) { least = far; nearest = { row, x: atX, y: atY }; }
    }
    return nearest;
  };
  return html`<section class="chart" aria-label="Parallel coordinates"><div class="toolbar"><h3>From hyperparameters to the result</h3><button onClick=${() => savePng(canvas.current, "parallel")}>PNG</button></div>
    <div><canvas ref=${canvas} role="img" data-name="parallel" data-lines=${known.length} aria-label=${`Each of ${known.length} trials as a line through ${columns.length} hyperparameters to its best ${metric.label}; the table holds the same numbers.`}
      onPointerMove=${(event) => { const one = found(event); setTip(one); onHot(one ? one.row.id : null); }} onPointerLeave=${() => { setTip(null); onHot(null); }} onClick=${(event) => { const one = found(event); if (one) onPick(one.row.id); }}></canvas></div>
    ${tip && html`<div class="tip" style=${{ left: `${Math.max(4, Math.min(tip.x + 12, width - 200))}px`, top: `${tip.y + 44}px` }}>trial ${tip.row.id}: ${metric.label} ${number(tip.row.best)}</div>`}</section>`;
}

function median(found) {
  const ordered = [...found].sort((a, b) => a - b);
  const middle = ordered.length >> 1;
  return ordered.length % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
}

export function Effect({ rows, name, isLog, outcomes, metric, best, hot, onHot, dark }) {
  const places = useRef([]);
  const known = useMemo(() => rows.filter((row) => row.best !== null && row.parameters[name] !== undefined), [rows, name]);
  const tone = useTones(outcomes, dark), height = 210;
  const found = useMemo(() => values(known, name), [known, name]);
  const isBands = found.length <= MOST_BANDS || !found.every((value) => typeof value === "number");
  const [canvas] = useCanvas((context, size) => {
    if (!known.length) return;
    const [left, right, top, base] = [50, size.width - 8, 8, height - 24];
    const sorted = known.map((row) => row.best).sort((a, b) => a - b);
    const edge = Math.floor(0.9 * (sorted.length - 1));
    // the worst tenth stands at the edge, so that diverged trials do not squeeze the rest
    const [low, high] = metric.maximize ? [sorted[sorted.length - 1 - edge], sorted.at(-1)] : [sorted[0], sorted[edge]];
    const y = axis(low - 0.06 * (high - low || 1), high + 0.06 * (high - low || 1));
    const x = isBands ? null : axis(isLog ? found[0] / 1.15 : found[0], isLog ? found.at(-1) * 1.15 : found.at(-1), isLog);
    const atY = (value) => Math.max(top, Math.min(base, base - y.share(value) * (base - top)));
    const [soft, line, ink, paper] = ["--soft", "--line", "--ink", "--paper"].map(colour);
    context.font = "11px system-ui, sans-serif"; context.fillStyle = soft; context.strokeStyle = line; context.textBaseline = "middle"; context.textAlign = "right";
    for (const tick of y.ticks) { const at = Math.round(atY(tick)) + 0.5; context.beginPath(); context.moveTo(left, at); context.lineTo(right, at); context.stroke(); context.fillText(number(tick, 3), left - 5, at); }
    context.textAlign = "center"; context.textBaseline = "top";
    const band = (right - left) / found.length;
    if (isBands) { const every = Math.ceil((found.length * 44) / (right - left)); found.forEach((value, index) => { if (index % every === 0) context.fillText(setting(value).slice(0, 12), left + (index + 0.5) * band, base + 6); }); }
    else for (const tick of x.ticks) context.fillText(number(tick, 2), left + x.share(tick) * (right - left), base + 6);
    const index = new Map(found.map((value, place) => [JSON.stringify(value), place]));
    places.current = known.map((row) => {
      // spread sideways by the trial's number, so that a page drawn twice is the same page
      const side = ((row.id * 2654435761) % 1000) / 1000 - 0.5;
      const at = isBands ? left + (index.get(JSON.stringify(row.parameters[name])) + 0.5 + 0.55 * side) * band : left + x.share(row.parameters[name]) * (right - left);
      return { row, x: at, y: atY(row.best) };
    });
    const rank = ({ row }) => (row.id === hot ? 2 : row.id === best ? 1 : 0);
    for (const place of [...places.current].sort((a, b) => rank(a) - rank(b))) {
      context.globalAlpha = hot === null || rank(place) ? 0.9 : 0.25;
      mark(context, place.row.id === best ? "star" : outcomes[place.row.outcome].shape, place.x, place.y, tone(place.row, place.row.id === best), paper, place.row.id === hot ? 6 : 3.8);
    }
    context.globalAlpha = 0.75; context.strokeStyle = ink; context.lineWidth = 2.5;
    if (isBands) found.forEach((value, place) => { const at = atY(median(known.filter((row) => JSON.stringify(row.parameters[name]) === JSON.stringify(value)).map((row) => row.best))); context.beginPath(); context.moveTo(left + (place + 0.18) * band, at); context.lineTo(left + (place + 0.82) * band, at); context.stroke(); });
    context.globalAlpha = 1;
  }, height, [known, found, hot, best, dark, metric.maximize]);
  const moved = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const [atX, atY] = [event.clientX - box.left, event.clientY - box.top];
    const one = places.current.map((place) => [Math.hypot(place.x - atX, place.y - atY), place]).filter(([far]) => far < NEAR).sort((a, b) => a[0] - b[0])[0];
    onHot(one ? one[1].row.id : null);
  };
  const medians = isBands ? found.map((value) => `${setting(value)}: median ${number(median(known.filter((row) => JSON.stringify(row.parameters[name]) === JSON.stringify(value)).map((row) => row.best)))}`).join("; ") : "";
  return html`<section class="chart" aria-label=${`Effect of ${name}`}><h3>${name}</h3><div><canvas ref=${canvas} role="img" data-name=${`effect-${name}`} aria-label=${`Best ${metric.label} of ${known.length} trials by ${name}. ${medians}`} onPointerMove=${moved} onPointerLeave=${() => onHot(null)}></canvas></div></section>`;
}

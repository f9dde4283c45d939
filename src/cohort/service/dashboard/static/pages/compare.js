// Trials of one or several runs next to each other: their curves, and where their configurations differ.
import { html, useEffect, useMemo, useState } from "../vendor/preact-htm.js";
import { choose, get, link } from "../api.js";
import { average } from "../axes.js";
import { Chart } from "../chart.js";
import { csv, download, number, setting } from "../format.js";
import { Empty, Failure, useDark, useTitle } from "../parts.js";

// as the report's tasks: told apart by their dashes and names as well
const TONES = ["#0072b2", "#d55e00", "#00815c", "#b0568c", "#b87a00", "#6b5bb0", "#2f8fc4", "#7d8591"];
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
const SECONDS_BETWEEN = 5;

async function load(query) {
  const wanted = (query.trials ?? "").split("|").filter(Boolean).map((text) => { const at = text.lastIndexOf(":"); return [text.slice(0, at), Number(text.slice(at + 1))]; });
  const names = [...new Set([...wanted.map(([run]) => run), ...(query.runs ?? "").split("|").filter(Boolean)])];
  const runs = new Map(await Promise.all(names.map(async (name) => [name, await get("run", { run: name })])));
  // of a run that was chosen as a whole, its best trial
  for (const name of (query.runs ?? "").split("|").filter(Boolean)) if (runs.get(name).best) wanted.push([name, runs.get(name).best.trial]);
  const curves = new Map(await Promise.all(names.map(async (name) => {
    const trials = wanted.filter(([run]) => run === name).map(([, trial]) => trial);
    return [name, await Promise.all([get("run/curves", { run: name, trials: trials.join(",") || "0" }), get("run/evaluations", { run: name })])];
  })));
  return wanted.map(([run, trial]) => {
    const data = runs.get(run);
    const [train, evaluations] = curves.get(run);
    return { run, trial, data, row: data.trials.find((one) => one.id === trial), train: train.curves[trial], stride: train.stride, validation: evaluations.loss[trial] };
  }).filter(({ row }) => row);
}

export function Compare({ query }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const [turn, setTurn] = useState(0);
  const [hot, setHot] = useState(null);
  const dark = useDark();
  useTitle("Compare");
  useEffect(() => {
    let isOver = false, timer = null;
    const read = async () => {
      if (!document.hidden) try { const next = await load(query); if (!isOver) { setFound(next); setError(null); } } catch (failure) { if (!isOver) setError(failure); }
      if (!isOver) timer = setTimeout(read, 1000 * SECONDS_BETWEEN);
    };
    read();
    return () => { isOver = true; clearTimeout(timer); };
  }, [query.trials, query.runs, turn]);
  const kind = query.curve ?? "validation";
  const label = (one) => `${one.data.label ?? (one.run === "." ? one.data.title : one.run)}, trial ${one.trial}`;
  const curves = useMemo(() => (found ?? []).flatMap((one, index) => {
    const curve = kind === "train" ? one.train : one.validation;
    if (!curve) return [];
    return [{ id: `${one.run}:${one.trial}`, label: label(one), note: one.row.state, xs: curve[0].map((step) => (100 * step) / one.row.planned), ys: kind === "train" ? average(curve[1], one.data.ema_weight, one.stride) : curve[1],
      tone: TONES[index % TONES.length], dash: DASHES[Math.floor(index / TONES.length + index) % DASHES.length], strong: true, shape: "circle" }];
  }), [found, kind, dark]);
  if (!found) return html`<h1>Compare</h1>${error ? html`<${Failure} error=${error} again=${() => setTurn(turn + 1)} />` : html`<p class="note" role="status">Reading the runs …</p>`}`;
  if (!found.length) return html`<h1>Compare</h1><${Empty} title="Nothing chosen yet"><p>Tick runs on the <a href=${link("runs")}>list of runs</a>, which compares their best trials, or trials in the table of a sweep; then press Compare. The address of this page keeps the choice.</p><//>`;
  const names = [...new Set(found.flatMap((one) => Object.keys(one.row.parameters)))];
  const differs = (name) => new Set(found.map((one) => JSON.stringify(one.row.parameters[name]))).size > 1;
  const lines = [
    ["base model", (one) => one.data.base_model ?? one.data.model], ["state", (one) => one.row.state], ["best value", (one) => `${number(one.row.best)} (${one.data.metric.label})`], ...(found.every((one) => one.data.metric.name === "loss") ? [] : [["validation loss there", (one) => number(one.row.best_loss)]]),
    ["steps", (one) => `${one.row.steps} of ${one.row.planned}`], ...names.filter((name) => query.all === "1" || differs(name)).map((name) => [name, (one) => setting(one.row.parameters[name])]),
  ];
  const saved = () => download("compare.csv", csv(["", ...found.map(label)], lines.map(([name, value]) => [name, ...found.map(value)])), "text/csv");
  const parts = (query.zoom ?? "").split("~").map(Number);
  const zoom = parts.length === 2 && parts.every(Number.isFinite) && parts[1] > parts[0] ? parts : null;
  const tools = html`<select aria-label="Which curves" value=${kind} onChange=${(event) => choose({ curve: event.target.value })}><option value="validation">validation loss</option><option value="train">train loss</option></select>`;
  return html`<h1>Compare</h1><${Failure} error=${error} again=${() => setTurn(turn + 1)} />
    <${Chart} title="Loss curves" name="compare" curves=${curves} xLabel="planned steps done, %" yLabel=${kind === "train" ? "train loss" : "validation loss"} range=${[0, 100]} zoom=${zoom} onZoom=${(next) => choose({ zoom: next ? next.map((value) => Number(value.toPrecision(6))).join("~") : "" })} hot=${hot} onHot=${setHot} tools=${tools} />
    <ul class="key">${found.map((one, index) => html`<li><span class="dot" style=${{ background: TONES[index % TONES.length] }}></span><a href=${link("trial", { run: one.run, trial: one.trial })}>${label(one)}</a></li>`)}</ul>
    <div class="row"><h2 class="grow">Where they differ</h2><button aria-pressed=${query.all === "1" ? "true" : "false"} onClick=${() => choose({ all: query.all === "1" ? "" : "1" })}>All hyperparameters</button><button onClick=${saved}>CSV</button></div>
    <div class="scroll" tabindex="0" role="region" aria-label="Configurations"><table><thead><tr><td></td>${found.map((one) => html`<th scope="col">${label(one)}</th>`)}</tr></thead>
      <tbody>${lines.map(([name, value]) => html`<tr><th scope="row">${name}</th>${found.map((one) => html`<td>${value(one)}</td>`)}</tr>`)}</tbody></table></div>`;
}

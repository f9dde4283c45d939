// One trial: its curves, its decisions, its evaluations, and its configuration to copy.
import { html, useEffect, useMemo, useState } from "../vendor/preact-htm.js";
import { choose, get, link } from "../api.js";
import { average } from "../axes.js";
import { Chart, colour } from "../chart.js";
import { Controls } from "../controls.js";
import { count, csv, download, duration, number, setting } from "../format.js";
import { Card, Failure, useDark, useTitle } from "../parts.js";
import { Answers, RolloutCharts, useRollouts } from "../rollouts.js";
import { useRun } from "../run_data.js";

export function Trial({ query }) {
  const name = query.run ?? ".", id = Number(query.trial);
  const { data, train, evaluations, error, connection, again } = useRun(name);
  const [page, setPage] = useState(null);
  const [own, setOwn] = useState(null);
  const [failure, setFailure] = useState(null);
  const [asked, setAsked] = useState(null);
  const [copied, setCopied] = useState("");
  const dark = useDark();
  useTitle(`Trial ${id}`);
  const row = data?.trials.get(id);
  const rollouts = useRollouts(name, data, id);
  // its decisions change when its state or its evaluations do
  const sign = row ? `${row.state} ${row.best} ${row.best_step}` : "";
  useEffect(() => { get("run/trial", { run: name, trial: id }).then(setPage, setFailure); }, [name, id, sign]);
  useEffect(() => { get("run/curves", { run: name, trials: id }).then(setOwn, () => {}); }, [name, id, row?.status]);
  const curves = useMemo(() => {
    if (!train || !row) return [];
    const tone = data.outcomes[row.outcome].colours[dark ? 1 : 0];
    const live = train.curves[id] ?? [[], []];
    const [steps, values] = own?.curves[id] ?? [[], []];
    // all points of this trial alone, and what came since they were read
    const more = live[0].map((step, index) => index).filter((index) => !steps.length || live[0][index] > steps.at(-1));
    const raw = [[...steps, ...more.map((index) => live[0][index])], [...values, ...more.map((index) => live[1][index])]];
    const found = [
      { id: "each step", label: "train loss of a step", xs: raw[0], ys: raw[1], tone: colour("--grey") },
      { id: "average", label: "train loss, running average", xs: raw[0], ys: average(raw[1], data.ema_weight, own?.stride ?? train.stride), tone, strong: true, shape: data.outcomes[row.outcome].shape },
    ];
    const validation = evaluations?.loss[id];
    if (validation) found.push({ id: "validation", label: "validation loss", xs: validation[0], ys: validation[1], tone: colour("--ink"), strong: true, dash: [5, 3], shape: "circle" });
    return found;
  }, [train, own, evaluations, row, dark]);
  const back = html`<p class="note"><a href=${link("runs")}>All runs</a> / <a href=${link("sweep", { run: name })}>${data?.label ?? (name === "." ? data?.title ?? "the run" : name)}</a></p>`;
  if (failure && !row) return html`${back}<${Failure} error=${failure} />`;
  if (!row) return html`${back}<${Failure} error=${error} again=${again} /><p class="note" role="status">Reading the trial …</p>`;
  const parts = (query.zoom ?? "").split("~").map(Number);
  const zoom = parts.length === 2 && parts.every(Number.isFinite) && parts[1] > parts[0] ? parts : null;
  const yaml = Object.entries(row.parameters).map(([key, value]) => `${key}: ${JSON.stringify(value)}`).join("\n");
  const options = Object.entries(row.parameters).map(([key, value]) => `--${key} ${typeof value === "object" ? `'${JSON.stringify(value)}'` : value}`).join(" ");
  const copy = (what, text) => navigator.clipboard.writeText(text).then(() => setCopied(what), () => setCopied("not copied: select the text instead"));
  const saved = () => download(`trial-${id}.csv`, csv(["step", "train_loss", "validation_loss"], curvesRows(curves)), "text/csv");
  return html`${back}<div class="row"><h1 class="grow">Trial ${id}</h1><span class=${`badge ${connection === "live" ? "live" : "lost"}`} role="status">${connection === "live" ? "live" : connection || "connecting"}</span></div>
    ${row.message ? html`<p>${row.message}</p>` : ""}<${Failure} error=${error} again=${again} />
    <div class="cards"><${Card} title="State" value=${row.state}><p>${row.steps} of ${row.planned} steps</p><//>
      <${Card} title=${`Best ${data.metric.label}`} value=${number(row.best)}><p>${row.best_step === null ? "not evaluated yet" : `at step ${row.best_step}, place ${row.place} of ${data.trials.size}`}</p><//>
      <${Card} title="Train loss" value=${number(row.loss)}><p>of its last step</p><//><${Card} title="Tokens" value=${count(row.tokens)}><p>trained so far</p><//></div>
    ${data.may_change ? html`<div class="row">${row.can.map((kind) => html`<button onClick=${() => setAsked({ kind, trial: id })}>${kind[0].toUpperCase()}${kind.slice(1)}</button>`)}</div>` : ""}
    <${Chart} title="Loss" name=${`trial-${id}`} curves=${curves} xLabel="optimizer steps" yLabel=${data.loss_unit ? `loss, ${data.loss_unit}` : "loss"} range=${[0, row.planned]} zoom=${zoom} onZoom=${(next) => choose({ zoom: next ? next.map((value) => Number(value.toPrecision(6))).join("~") : "" })} hot=${null} tools=${html`<button onClick=${saved}>CSV</button>`} />
    <p class="note">Grey: each step. Coloured: the running average that exit rules read. Dashed: validation loss.</p>
    <${RolloutCharts} found=${rollouts} data=${data} dark=${dark} range=${[0, row.planned]} /><${Answers} answers=${page?.answers} />
    <div class="two"><section><h2>Configuration</h2><dl class="facts">${Object.entries(row.parameters).map(([key, value]) => html`<div><dt>${key}</dt><dd>${setting(value)}</dd></div>`)}</dl>
      <div class="row"><button onClick=${() => copy("YAML copied", yaml)}>Copy as YAML</button><button onClick=${() => copy("options copied", options)}>Copy as options</button><span role="status" class="note">${copied}</span></div>
      ${page?.folder ? html`<p class="note">Its files: <code>${page.folder}</code></p>` : ""}</section>
    <section><h2>Decisions</h2>${page?.decisions.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="Decisions"><table class="stacks"><thead><tr><th scope="col">step</th><th scope="col">run time</th><th scope="col">what</th><th scope="col">why</th></tr></thead>
      <tbody>${page.decisions.map((one) => html`<tr><td class="n" data-label="step">${one.step}</td><td class="n" data-label="after">${duration(one.seconds)}</td><td>${one.kind.replace("_", " ")}</td><td class="wrap lead">${one.reason}${one.message ? ` (${one.message})` : ""}<br /><span class="note">${one.rule.replaceAll("_", " ")}: ${Object.entries(one.numbers).map(([key, value]) => `${key.replaceAll("_", " ")} ${number(value)}`).join(", ")}</span></td></tr>`)}</tbody></table></div>` : html`<p class="note">None yet.</p>`}</section></div>
    <h2>Evaluations</h2>${page?.evaluations.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="Evaluations"><table><thead><tr><th scope="col" class="n">step</th><th scope="col" class="n">run time</th><th scope="col" class="n">validation loss</th>${Object.keys(page.evaluations[0].metrics).map((key) => html`<th scope="col" class="n">${key}</th>`)}</tr></thead>
      <tbody>${page.evaluations.map((one) => html`<tr><td class="n">${one.step}</td><td class="n">${duration(one.seconds)}</td><td class="n">${number(one.loss)}</td>${Object.keys(page.evaluations[0].metrics).map((key) => html`<td class="n">${number(one.metrics[key])}</td>`)}</tr>`)}</tbody></table></div>` : html`<p class="note">None yet.</p>`}
    ${asked ? html`<${Controls} run=${name} asked=${asked} data=${data} onClose=${() => setAsked(null)} />` : ""}`;
}

function curvesRows(curves) {
  const rows = new Map();
  const put = (curve, place) => curve?.xs.forEach((step, index) => { if (!rows.has(step)) rows.set(step, [step, null, null]); rows.get(step)[place] = curve.ys[index]; });
  put(curves.find((curve) => curve.id === "each step"), 1);
  put(curves.find((curve) => curve.id === "validation"), 2);
  return [...rows.values()].sort((a, b) => a[0] - b[0]);
}

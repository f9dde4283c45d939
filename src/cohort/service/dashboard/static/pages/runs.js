// All runs of the folder: where each stands.
import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { choose, get, link } from "../api.js";
import { count, csv, download, duration, moment, money, number, percent } from "../format.js";
import { Empty, Failure, Meter, Sorted, Spark, sorted, useTitle } from "../parts.js";

const SECONDS_BETWEEN = 4;
const VALUES = {
  name: (run) => nameOf(run), state: (run) => stateOf(run), best: (run) => run.best?.value, trials: (run) => run.num_trials,
  done: (run) => run.share_done, left: (run) => run.seconds_left, cost: (run) => run.cost_tokens_left, updated: (run) => run.updated_at ?? run.job?.changed_at,
};

/** Runs of the folder, or the jobs of a service's project; `project` names one that is not the viewer's. */
function useRuns(project) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let timer = null, isOver = false;
    const read = async () => {
      let isReading = false;
      // a page in the background asks for nothing
      if (!document.hidden) {
        try { const next = await get("runs", { project }); isReading = next.runs.some((run) => run.is_reading); if (!isOver) { setFound(next); setError(null); } } catch (failure) { if (!isOver) setError(failure); }
      }
      if (!isOver) timer = setTimeout(read, isReading ? 500 : 1000 * SECONDS_BETWEEN);
    };
    read();
    return () => { isOver = true; clearTimeout(timer); };
  }, [project, turn]);
  return [found, error, () => setTurn(turn + 1)];
}

/** A sum of money behind what it is for, where there is one. */
const paid = (seconds, run, price) => { const sum = money(seconds, price, run.num_devices); return sum && `, ${sum}`; };
const tokens = (value) => (value === null || value === undefined ? "–" : `${count(value)} tokens`);

/** What people call a run, what is smaller below it, and what it is called in addresses. */
const nameOf = (run) => run.label ?? (run.name === "." ? run.title : run.name);
const isOver = (run) => run.state === "done" || ["succeeded", "failed", "cancelled"].includes(run.job?.status);
const stateOf = (run) => run.job?.status.replace("_", " ") ?? run.state;

/** A job whose run is not here, or has not begun: what the service itself knows of it. */
function JobRow({ run }) {
  return html`<tr><td></td><td class="lead wrap"><a href=${link("sweep", { run: run.name })}><strong>${nameOf(run)}</strong></a><br /><span class="note">${run.job.base_model}</span></td>
    <td data-label="state"><span class=${`badge ${run.job.status === "running" ? "live" : run.job.status === "failed" ? "lost" : ""}`}>${stateOf(run)}</span><br /><span class="note">${moment(run.job.changed_at)}</span></td><td colspan="6" class="wrap">${run.job.error || run.job.absent}</td></tr>`;
}

function Row({ run, price, isChosen, onChoose }) {
  if (run.job && !run.metric && !run.is_reading && !run.error) return html`<${JobRow} run=${run} />`;
  if (run.is_reading) return html`<tr><td></td><td class="lead"><a href=${link("sweep", { run: run.name })}><strong>${nameOf(run)}</strong></a></td><td colspan="7" class="note">reading its record …</td></tr>`;
  if (run.error) return html`<tr><td></td><td class="lead"><strong>${nameOf(run)}</strong></td><td colspan="7" class="wrap" data-label="cannot be read:">${run.error}</td></tr>`;
  const counts = Object.entries(run.counts).filter(([, amount]) => amount).map(([state, amount]) => `${amount} ${state === "parked" ? "paused" : state}`).join(", ");
  return html`<tr>
    <td><input type="checkbox" aria-label=${`Compare ${nameOf(run)}`} checked=${isChosen} onChange=${() => onChoose(run.name)} /></td>
    <td class="lead wrap"><a href=${link("sweep", { run: run.name })}><strong>${nameOf(run)}</strong></a><br /><span class="note">${run.job?.base_model ?? run.model}</span></td>
    <td data-label="state"><span class=${`badge ${stateOf(run) === "running" ? "live" : stateOf(run) === "failed" ? "lost" : ""}`}>${stateOf(run)}</span><br /><span class="note">${moment(run.updated_at)}</span></td>
    <td class="n" data-label=${run.metric.label}>${number(run.best?.value)}<br /><span class="note states"><span class="wide">${run.metric.label}${run.best ? ", " : ""}</span>${run.best ? `trial ${run.best.trial}` : ""}</span></td>
    <td><${Spark} points=${run.spark} label=${`Best ${run.metric.label} so far`} /></td>
    <td class="n" data-label="trials">${run.num_trials}<br /><span class="note states">${counts}</span></td>
    <td data-label="steps done">${percent(run.share_done)}<${Meter} share=${run.share_done} label=${`Steps done of ${nameOf(run)}`} />${run.state === "done" && run.share_done < 0.995 ? html`<span class="note states">the rest was not needed</span>` : ""}</td>
    <td class="n" data-label="time left">${isOver(run) ? stateOf(run) : duration(run.seconds_left)}<br /><span class="note">${duration(run.seconds)} so far</span></td>
    <td class="n" data-label="cost left">${isOver(run) ? "" : html`${tokens(run.cost_tokens_left)}${paid(run.seconds_left, run, price)}<br />`}<span class="note states">${tokens(run.cost_tokens)}${paid(run.seconds, run, price)} so far${run.planned_tokens ? ` of ${count(run.planned_tokens)} in full` : ""}</span></td></tr>`;
}

/** What to do where there is no run yet. */
function NoRun({ found }) {
  if (found.project) return html`<${Empty} title="No job yet"><p>${found.is_own ? "Submit one with a key of this project, and it appears here by itself:" : "Its tenants submit jobs with their keys:"}</p>
    <pre>export COHORT_API_KEY=...\ncohort submit TASK.yaml --server ${location.origin} --base NAME</pre><p>Fine-tuning jobs of OpenAI's API appear here as well.</p><//>`;
  return html`<${Empty} title="No run here yet"><p>Start one into this folder, and it appears here by itself:</p><pre>cohort tune TASK.yaml -o ${found.root === "." ? "" : found.root}/mine</pre>
    <p>Or start the dashboard with another folder: the one above the directory of <code>-o</code>.</p><//>`;
}

export function Runs({ query, session }) {
  const [found, error, again] = useRuns(query.project);
  const [chosen, setChosen] = useState(new Set());
  useTitle("Runs");
  if (!found) return html`<h1>Runs</h1>${error ? html`<${Failure} error=${error} again=${again} />` : html`<p class="note" role="status">Reading the runs …</p>`}`;
  const words = (query.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const isShown = (run) => words.every((word) => [run.name, run.label, run.title, run.model, run.job?.base_model, stateOf(run)].some((text) => String(text ?? "").toLowerCase().includes(word)));
  const sort = query.sort ?? "-updated";
  const key = sort.replace(/^-/, "");
  const rows = sorted(found.runs.filter(isShown), VALUES[key] ?? VALUES.updated, sort.startsWith("-"));
  const onSort = (next) => choose({ sort: next });
  const toggled = (name) => { const next = new Set(chosen); if (!next.delete(name)) next.add(name); setChosen(next); };
  const saved = () => download("runs.csv", csv(
    ["run", "state", "model", "metric", "best", "best_trial", "trials", "share_done", "seconds", "seconds_left", "cost_tokens", "cost_tokens_left", "planned_tokens", "devices"],
    rows.filter((run) => run.metric).map((run) => [run.name, stateOf(run), run.job?.base_model ?? run.model, run.metric.name, run.best?.value, run.best?.trial, run.num_trials, run.share_done, run.seconds, run.seconds_left, run.cost_tokens, run.cost_tokens_left, run.planned_tokens, run.num_devices]),
  ), "text/csv");
  const head = (name, text, numeric) => html`<${Sorted} name=${name} sort=${sort} onSort=${onSort} numeric=${numeric}>${text}<//>`;
  const where = found.project ? html`of <strong>${found.project}</strong>${found.is_own ? "" : html` · <a href=${link("service", { project: query.project })}>its usage and keys</a>`}${found.has_more ? ` · the newest ${found.runs.length} jobs` : ""}` : html`in <code>${found.root}</code>`;
  return html`<h1>Runs</h1><p class="note">${where}${found.queues.length ? html` · queues: ${found.queues.map((name) => html`<a href=${link("queue", { queue: name })}>${name === "." ? "this folder" : name}</a> `)}` : ""}</p>
    <${Failure} error=${error} again=${again} />
    ${!found.runs.length ? html`<${NoRun} found=${found} />` : html`
    <div class="row"><label class="grow"><span class="hidden">Filter runs</span><input type="search" placeholder="Filter by name, model or state" value=${query.q ?? ""} onInput=${(event) => choose({ q: event.target.value })} /></label>
      <a class="button" href=${link("compare", { runs: [...chosen].join("|") })} aria-disabled=${chosen.size < 2 ? "true" : "false"} title=${chosen.size < 2 ? "Tick two runs or more to compare their best trials" : "Compare the best trials of the ticked runs"}>Compare${chosen.size ? ` ${chosen.size}` : ""}</a>
      <button onClick=${saved}>CSV</button></div>
    <div class="scroll" tabindex="0" role="region" aria-label="Runs"><table class="stacks"><caption class="hidden">Runs</caption><thead><tr><th scope="col"><span class="hidden">Compare</span></th>
      ${head("name", "run")}${head("updated", "state, last written")}${head("best", "best so far", true)}<th scope="col">best over time</th>${head("trials", "trials", true)}${head("done", "steps done")}${head("left", "time left", true)}${head("cost", "cost left", true)}</tr></thead>
      <tbody>${rows.map((run) => html`<${Row} key=${run.name} run=${run} price=${session.gpu_hour} isChosen=${chosen.has(run.name)} onChoose=${toggled} />`)}</tbody></table></div>
    ${!rows.length ? html`<p class="note">No run has “${query.q}”. <button onClick=${() => choose({ q: "" })}>Show all ${found.runs.length}</button></p>` : ""}`}`;
}

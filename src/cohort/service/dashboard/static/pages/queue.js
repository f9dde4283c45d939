// A queue: its tasks on devices over time, as planned and as it went.
import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { get, link } from "../api.js";
import { duration, number, percent } from "../format.js";
import { Empty, Failure, Meter, useTitle } from "../parts.js";

const SECONDS_BETWEEN = 4;
const WIDTH = 1000, ROW = 30, LEFT = 150;

function Timeline({ queue }) {
  // as the present plan has it; what has begun, as the first plan had it
  const planned = (task) => (task.expected_start_seconds !== null ? [task.expected_start_seconds, task.expected_end_seconds] : [task.planned_start_seconds, task.planned_end_seconds]);
  const rows = queue.tasks.filter((task) => planned(task)[0] !== null || task.start_seconds !== null);
  // without a process that works on it, a task has gone as far as it held its device
  const endOf = (task) => task.end_seconds ?? (task.start_seconds === null ? 0 : queue.holder ? queue.seconds : task.start_seconds + (task.held_seconds ?? 0));
  const end = Math.max(0, ...rows.flatMap((task) => [planned(task)[1] ?? 0, endOf(task)]));
  if (!end) return html`<p class="note">Nothing is planned and nothing has run yet.</p>`;
  const [divisor, unit] = end > 7200 ? [3600, "hours"] : end > 180 ? [60, "minutes"] : [1, "seconds"];
  const at = (seconds) => LEFT + ((WIDTH - LEFT - 10) * seconds) / end;
  const height = rows.length * ROW + 30;
  const told = rows.map((task) => `${task.name} ${task.state}`).join(", ");
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Tasks over time"><svg viewBox=${`0 0 ${WIDTH} ${height}`} style=${{ minWidth: "640px", width: "100%", font: "12px system-ui" }} role="img" aria-label=${`Tasks over ${duration(end)}: ${told}`}>
    ${[0, 0.25, 0.5, 0.75, 1].map((share) => html`<line x1=${at(share * end)} x2=${at(share * end)} y1="0" y2=${height - 26} stroke="var(--line)" /><text x=${at(share * end)} y=${height - 8} fill="var(--soft)" text-anchor=${share === 1 ? "end" : "middle"}>${number((share * end) / divisor, 3)}${share === 1 ? ` ${unit}` : ""}</text>`)}
    ${rows.map((task, index) => html`<g><text x="4" y=${index * ROW + 19} fill="var(--ink)">${task.name.slice(0, 20)}</text>
      ${planned(task)[0] !== null ? html`<rect x=${at(planned(task)[0])} y=${index * ROW + 3} width=${Math.max(2, at(planned(task)[1] ?? end) - at(planned(task)[0]))} height="9" fill="none" stroke="var(--soft)" stroke-dasharray="4 3"><title>${task.name}, planned: ${duration(planned(task)[0])} to ${duration(planned(task)[1])}</title></rect>` : ""}
      ${task.start_seconds !== null ? html`<rect x=${at(task.start_seconds)} y=${index * ROW + 14} width=${Math.max(2, at(endOf(task)) - at(task.start_seconds))} height="11" rx="2" fill="var(--strong)"><title>${task.name}, as it went: ${duration(task.start_seconds)} to ${task.end_seconds === null && queue.holder ? "now" : duration(endOf(task))}${task.device ? `, ${task.device}` : ""}</title></rect>` : ""}</g>`)}
  </svg></div><p class="note">Dashed: as planned. Filled: as it went. Times since the queue began.</p>`;
}

export function Queue({ query }) {
  const [found, setFound] = useState(null);
  const [names, setNames] = useState(null);
  const [error, setError] = useState(null);
  const [turn, setTurn] = useState(0);
  useTitle("Queue");
  useEffect(() => {
    let isOver = false, timer = null;
    const read = async () => {
      if (!document.hidden) {
        try {
          const { queues } = await get("queues");
          const next = query.queue !== undefined ? query.queue : queues[0];
          const queue = next === undefined ? null : await get("queue", { queue: next });
          if (!isOver) { setNames(queues); setFound(queue && { ...queue, name: next }); setError(null); }
        } catch (failure) { if (!isOver) setError(failure); }
      }
      if (!isOver) timer = setTimeout(read, 1000 * SECONDS_BETWEEN);
    };
    read();
    return () => { isOver = true; clearTimeout(timer); };
  }, [query.queue, turn]);
  const again = () => setTurn(turn + 1);
  if (!names) return html`<h1>Queue</h1>${error ? html`<${Failure} error=${error} again=${again} />` : html`<p class="note" role="status">Reading the queue …</p>`}`;
  if (!found) return html`<h1>Queue</h1><${Failure} error=${error} again=${again} /><${Empty} title="No queue in this folder"><p>A queue runs many tasks on the devices of this machine, in an order that ends soonest:</p><pre>cohort run a.yaml b.yaml -o runs/night</pre><//>`;
  const inRun = (task) => (found.name === "." ? task.name : `${found.name}/${task.name}`);
  return html`<h1>Queue ${found.name === "." ? "" : found.name}</h1><p class="note">${found.holder ?? "no process works on it now"}${found.end_seconds ? ` · expected to end ${duration(found.end_seconds - found.seconds)} from now` : ""}</p>
    ${names.length > 1 ? html`<nav class="row" aria-label="Queues">${names.map((name) => html`<a class="button" href=${link("queue", { queue: name })} aria-current=${name === found.name ? "page" : null}>${name === "." ? "this folder" : name}</a>`)}</nav>` : ""}
    <${Failure} error=${error} again=${again} /><h2>Tasks over time</h2><${Timeline} queue=${found} />
    <h2>Tasks</h2><div class="scroll" tabindex="0" role="region" aria-label="Tasks"><table class="stacks"><thead><tr><th scope="col">task</th><th scope="col">state</th><th scope="col">device</th><th scope="col" class="n">trials</th><th scope="col">steps done</th><th scope="col" class="n">best</th><th scope="col" class="n">expected</th></tr></thead>
    <tbody>${found.tasks.map((task) => html`<tr key=${task.name}><td class="lead">${task.num_trials ? html`<a href=${link("sweep", { run: inRun(task) })}>${task.name}</a>` : task.name}</td><td data-label="state">${task.state}${task.reason ? ` (${task.reason})` : ""}</td><td data-label="device">${task.device ?? ""}${task.shares_with.length ? `, with ${task.shares_with.join(", ")}` : ""}</td>
      <td class="n" data-label="trials">${task.num_trials ? `${task.num_ended} of ${task.num_trials} ended` : ""}</td><td data-label="steps done">${task.share_done === null ? "" : html`${percent(task.share_done)}<${Meter} share=${task.share_done} label=${`Steps done of ${task.name}`} />`}</td>
      <td class="n" data-label="best">${task.best_value === null ? "" : `${number(task.best_value)} ${task.metric ?? ""}`}</td><td class="n" data-label="expected">${duration(task.expected_seconds)}</td></tr>`)}</tbody></table></div>`;
}

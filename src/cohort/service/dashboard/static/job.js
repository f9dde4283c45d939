// A job of a service: where it stands, what happened to it, and what its owner may ask of it as a whole.
import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { get } from "./api.js";
import { Controls } from "./controls.js";
import { count, moment } from "./format.js";
import { Failure } from "./parts.js";

const SECONDS_BETWEEN = 4;
const BUTTONS = { "pause-job": "Pause", "resume-job": "Resume", "cancel-job": "Cancel the job" };

/** The job of a run, asked again now and then; null before the first answer and where there are no jobs. */
export function useJob(run, has) {
  const [job, setJob] = useState(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (!has) return undefined;
    let timer = null, isOver = false;
    const read = async () => {
      // what goes wrong is shown by the run, which is asked in the same way
      if (!document.hidden) try { const next = await get("job", { run }); if (!isOver) setJob(next); } catch { /* see above */ }
      if (!isOver) timer = setTimeout(read, 1000 * SECONDS_BETWEEN);
    };
    read();
    return () => { isOver = true; clearTimeout(timer); };
  }, [run, has, turn]);
  return [job, () => setTurn((count) => count + 1)];
}

function times(job) {
  return [`submitted ${moment(job.created_at)}`, job.started_at && `begun ${moment(job.started_at)}`, job.finished_at && `ended ${moment(job.finished_at)}`,
    !job.finished_at && job.estimated_finish && `expected to end ${moment(job.estimated_finish)}`, job.trained_tokens && `${count(job.trained_tokens)} tokens trained`].filter(Boolean).join(" · ");
}

export function Job({ job, run, again }) {
  const [asked, setAsked] = useState(null);
  if (!job) return null;
  const close = () => { setAsked(null); again(); };
  return html`<section aria-label="Job"><div class="row"><span class=${`badge ${job.status === "running" ? "live" : job.status === "failed" ? "lost" : ""}`}>job ${job.status.replace("_", " ")}</span><span class="note grow">${times(job)}</span>
      ${job.can.map((kind) => html`<button class=${kind === "cancel-job" ? "danger" : ""} onClick=${() => setAsked({ kind })}>${BUTTONS[kind]}</button>`)}</div>
    ${job.model ? html`<p class="note">It answers as the model <code>${job.model}</code>. The adapter as files: <code>cohort export ${job.id} --server ${location.origin} -o adapter</code></p>` : ""}
    ${job.error ? html`<${Failure} error=${new Error(job.error)} />` : ""}
    ${job.absent ? html`<div class="empty"><h2 style=${{ marginTop: 0 }}>${job.started_at ? "There are no curves of it here" : "It has not begun yet"}</h2><p>${job.absent}</p>
      <p class="note">${job.started_at ? "What the service itself knows of it is below." : "Its trials and curves appear here by themselves."}</p></div>` : ""}
    <details open=${Boolean(job.absent)}><summary>What happened</summary>${job.events.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="What happened"><table class="stacks"><thead><tr><th scope="col">when</th><th scope="col">what</th></tr></thead>
      <tbody>${job.events.map((event) => html`<tr><td>${moment(event.at)}</td><td class="wrap lead">${event.level === "info" ? "" : html`<strong>${event.level}: </strong>`}${event.message}</td></tr>`)}</tbody></table></div>` : html`<p class="note">Nothing is kept of it any more.</p>`}</details>
    ${asked ? html`<${Controls} run=${run} asked=${asked} data=${{ trials: new Map() }} onClose=${close} />` : ""}</section>`;
}

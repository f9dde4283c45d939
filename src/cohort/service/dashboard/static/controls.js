// What a person does to a run: said in words first, done when confirmed.
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { post } from "./api.js";
import { Failure } from "./parts.js";

const TITLES = { stop: "Stop", resume: "Resume", keep: "Keep", clone: "Clone", add: "Add a trial", "stop-run": "Stop the run", "pause-job": "Pause the job", "resume-job": "Resume the job", "cancel-job": "Cancel the job" };

/** A value as YAML reads it: numbers, true and false, lists; all else is text. */
function parsed(text) {
  const word = text.trim();
  if (word === "true" || word === "false") return word === "true";
  if (word !== "" && Number.isFinite(Number(word))) return Number(word);
  if (/^[[{"]/.test(word)) { try { return JSON.parse(word); } catch { /* text, then */ } }
  return word;
}

export function Controls({ run, asked, data, onClose }) {
  const dialog = useRef(null);
  const isNew = asked.kind === "clone" || asked.kind === "add";
  const source = asked.trial === undefined ? {} : data.trials.get(asked.trial)?.parameters ?? {};
  const keys = Object.keys(asked.kind === "clone" ? source : [...data.trials.values()][0]?.parameters ?? {});
  const [values, setValues] = useState({});
  const [warm, setWarm] = useState(false);
  const [plan, setPlan] = useState(null);
  const [error, setError] = useState(null);
  const [done, setDone] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const changed = Object.fromEntries(Object.entries(values).filter(([name, text]) => text.trim() !== "" && (asked.kind !== "clone" || parsed(text) !== source[name])).map(([name, text]) => [name, parsed(text)]));
  const body = { kind: asked.kind, ...(asked.trial === undefined ? {} : { trial: asked.trial }), ...(isNew ? { values: changed, warm_start: warm } : {}) };
  const look = async () => {
    setBusy(true); setError(null); setPlan(null);
    try { setPlan(await post("run/preview", { run }, body)); } catch (failure) { setError(failure); }
    setBusy(false);
  };
  const act = async () => {
    setBusy(true); setError(null);
    try { setDone(await post("run/ask", { run }, body)); } catch (failure) { setError(failure); }
    setBusy(false);
  };
  useEffect(() => { dialog.current.showModal(); if (!isNew) look(); }, []);
  const title = `${TITLES[asked.kind]}${asked.trial === undefined ? "" : ` trial ${asked.trial}`}`;
  const edited = (name) => (event) => { setPlan(null); setValues({ ...values, [name]: event.target.value }); };
  return html`<dialog ref=${dialog} onClose=${onClose} aria-label=${title}><h2 style=${{ marginTop: 0 }}>${title}</h2>
    ${done ? html`<div class="done" role="status">${done.text}</div><div class="row"><button class="primary" onClick=${() => dialog.current.close()}>Close</button></div>` : html`
    ${isNew ? html`<form onSubmit=${(event) => { event.preventDefault(); look(); }}>
      <p class="note">${asked.kind === "clone" ? "What you change here differs from the trial; the rest is the same." : "What you leave empty is the task's default."}</p>
      ${keys.map((name) => html`<label class="field"><span>${name}</span><input name=${name} value=${values[name] ?? (asked.kind === "clone" ? String(source[name]) : "")} onInput=${edited(name)} /></label>`)}
      ${asked.kind === "clone" ? html`<label><input type="checkbox" checked=${warm} onChange=${(event) => { setPlan(null); setWarm(event.target.checked); }} /> begin with the weights of its best checkpoint</label>` : ""}
      <div class="row"><button class=${plan ? "" : "primary"} disabled=${isBusy}>See what it does</button></div></form>` : ""}
    ${plan ? html`<p><strong>What it does.</strong> ${plan.does}</p><p><strong>When.</strong> ${plan.when}</p><p><strong>To take it back.</strong> ${plan.undo}</p>` : isBusy ? html`<p class="note">Asking the run …</p>` : ""}
    <${Failure} error=${error} />
    <div class="row"><button class=${/^(stop|cancel)/.test(asked.kind) ? "danger" : "primary"} disabled=${!plan || isBusy} onClick=${act}>${title}</button><button onClick=${() => dialog.current.close()}>${asked.kind === "cancel-job" ? "Keep it" : "Cancel"}</button></div>`}
  </dialog>`;
}

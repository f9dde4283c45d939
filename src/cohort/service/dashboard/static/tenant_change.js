// What an administrator does to tenants and keys: said in words first, done when confirmed.
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { post } from "./api.js";
import { bytes, count } from "./format.js";
import { Failure } from "./parts.js";

const TITLES = { add: "Add a project", weight: "Set the weight", quotas: "Set quotas", "create-key": "Make a key", "revoke-key": "Revoke the key" };
const SCOPES = ["inference", "fine_tuning", "tasks", "tinker"], MORE_SCOPES = ["metrics"];
export const QUOTAS = {
  max_open_jobs: { label: "open jobs", show: count }, max_tokens_per_day: { label: "tokens a day (UTC)", show: count },
  max_stored_bytes: { label: "stored bytes", show: bytes }, max_requests_per_minute: { label: "requests a minute", show: count },
};
const SIZES = { "": 1, k: 1e3, kb: 1e3, m: 1e6, mb: 1e6, g: 1e9, gb: 1e9, t: 1e12, tb: 1e12, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40 };

/** A whole number as people write it: 20GB, 5M, 1000; nothing for no bound. The server says what is wrong with others. */
export function bound(text) {
  const word = text.trim().toLowerCase();
  if (word === "" || word === "none") return null;
  // commas separate thousands and nothing else: 1,5GB is refused, and not read as 15
  const found = /^(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?\s*([a-z]*)$/.exec(word);
  const size = found && SIZES[found[3]];
  return size ? Math.round(Number(found[1].replaceAll(",", "") + (found[2] ?? "")) * size) : text;
}

function numeric(text) {
  return text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}

/** The fields of a change that has some, and the body that they make. */
function useFields({ kind, project }) {
  const [values, setValues] = useState({ name: "", weight: String(project?.weight ?? 1), days: "", ...Object.fromEntries(Object.keys(QUOTAS).map((name) => [name, project?.[name]?.toString() ?? ""])) });
  const [scopes, setScopes] = useState(new Set(SCOPES));
  const body = { kind, ...(project ? { project: project.id } : {}) };
  if (kind === "add") Object.assign(body, { name: values.name, weight: numeric(values.weight) });
  if (kind === "weight") body.weight = numeric(values.weight);
  if (kind === "quotas") body.quotas = Object.fromEntries(Object.keys(QUOTAS).map((name) => [name, bound(values[name])]));
  if (kind === "create-key") Object.assign(body, { name: values.name, scopes: [...scopes], days: values.days.trim() === "" ? null : numeric(values.days) });
  return [values, setValues, scopes, setScopes, body];
}

function Fields({ kind, values, scopes, onValue, onScope }) {
  const field = (name, label, hint) => html`<label class="field"><span>${label}</span><input name=${name} value=${values[name]} placeholder=${hint ?? ""} onInput=${(event) => onValue(name, event.target.value)} /></label>`;
  if (kind === "add") return html`${field("name", "organisation/project", "acme/research")}${field("weight", "weight: 2 gets twice the GPU time of 1")}`;
  if (kind === "weight") return field("weight", "weight: 2 gets twice the GPU time of 1");
  if (kind === "quotas") return html`<p class="note">Empty is no bound. 20GB, 5M and 1000 are read.</p>${Object.entries(QUOTAS).map(([name, { label }]) => field(name, `most ${label}`, "no bound"))}`;
  return html`${field("name", "what people call it (may be empty)")}${field("days", "ends after days (empty: never)")}
    <fieldset class="plain"><legend>It opens</legend>${[...SCOPES, ...MORE_SCOPES].map((scope) => html`<label style=${{ marginRight: "14px" }}><input type="checkbox" checked=${scopes.has(scope)} onChange=${() => onScope(scope)} /> ${scope}</label>`)}</fieldset>`;
}

/** asked: {kind, project, key}; `onDone` hears that something changed. */
export function TenantChange({ asked, onClose, onDone }) {
  const dialog = useRef(null);
  const [values, setValues, scopes, setScopes, fields] = useFields(asked);
  const body = asked.key ? { ...fields, key: asked.key.id } : fields;
  const [plan, setPlan] = useState(null);
  const [done, setDone] = useState(null);
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const [copied, setCopied] = useState("");
  const send = async (path, hear) => {
    setBusy(true); setError(null);
    try { hear(await post(path, {}, body)); } catch (failure) { setError(failure); }
    setBusy(false);
  };
  const look = () => { setPlan(null); send("service/preview", setPlan); };
  const act = () => send("service/change", (found) => { setDone(found); onDone(found); });
  const hasFields = asked.kind !== "revoke-key";
  useEffect(() => { dialog.current.showModal(); if (!hasFields) look(); }, []);
  const title = TITLES[asked.kind];
  const onValue = (name, text) => { setPlan(null); setValues({ ...values, [name]: text }); };
  const onScope = (scope) => { const next = new Set(scopes); if (!next.delete(scope)) next.add(scope); setPlan(null); setScopes(next); };
  const copy = () => navigator.clipboard.writeText(done.secret).then(() => setCopied("copied"), () => setCopied("not copied: select it instead"));
  return html`<dialog ref=${dialog} onClose=${onClose} aria-label=${title}><h2 style=${{ marginTop: 0 }}>${title}</h2>
    ${done ? html`<div class="done" role="status">${done.text}${done.secret ? html`<pre>${done.secret}</pre>` : ""}</div>
      <div class="row">${done.secret ? html`<button onClick=${copy}>Copy the key</button><span class="note" role="status">${copied}</span>` : ""}<button class="primary" onClick=${() => dialog.current.close()}>Close</button></div>` : html`
    ${hasFields ? html`<form onSubmit=${(event) => { event.preventDefault(); look(); }}><${Fields} kind=${asked.kind} values=${values} scopes=${scopes} onValue=${onValue} onScope=${onScope} />
      <div class="row"><button class=${plan ? "" : "primary"} disabled=${isBusy}>See what it does</button></div></form>` : ""}
    ${plan ? html`<p><strong>What it does.</strong> ${plan.does}</p><p><strong>When.</strong> ${plan.when}</p><p><strong>To take it back.</strong> ${plan.undo}</p>` : ""}
    <${Failure} error=${error} />
    <div class="row"><button class=${asked.kind === "revoke-key" ? "danger" : "primary"} disabled=${!plan || isBusy} onClick=${act}>${title}</button><button onClick=${() => dialog.current.close()}>Cancel</button></div>`}
  </dialog>`;
}

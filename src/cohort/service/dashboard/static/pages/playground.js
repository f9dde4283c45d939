// One prompt, answered by the base model and up to four adapters next to each other, as the answers come.
import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { choose, get, stream } from "../api.js";
import { Empty, Failure, useTitle } from "../parts.js";

const MOST = 5;

export function Playground({ query }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const [turn, setTurn] = useState(0);
  const [answers, setAnswers] = useState({});
  const [isBusy, setBusy] = useState(false);
  const [form, setForm] = useState({ prompt: query.prompt ?? "", tokens: "128", temperature: "0", chat: query.chat === "1" });
  const aborter = useRef(null);
  useTitle("Playground");
  useEffect(() => { setError(null); get("playground").then(setFound, setError); }, [turn]);
  useEffect(() => () => aborter.current?.abort(), []);
  const again = () => setTurn(turn + 1);
  if (error) return html`<h1>Playground</h1><${Failure} error=${error} again=${again} />`;
  if (!found) return html`<h1>Playground</h1><p class="note" role="status">Asking the server of models …</p>`;
  if (!found.url) return html`<h1>Playground</h1><${Empty} title="No server of models yet"><p>Serve a run's base model and its adapters, and name the server to the dashboard:</p>
    <pre>cohort serve runs/mine --trial 7 --trial 12\ncohort dashboard runs --playground http://127.0.0.1:8000</pre><p>Or both in one: <code>cohort serve runs/mine --dashboard runs</code>.</p><//>`;
  const wanted = (query.models ?? "").split("|").filter((name) => found.models.includes(name));
  const models = wanted.length ? wanted : found.models.slice(0, Math.min(2, found.models.length));
  const toggle = (name) => choose({ models: (models.includes(name) ? models.filter((one) => one !== name) : [...models, name]).join("|") });
  const stop = () => { aborter.current?.abort(); setBusy(false); };
  const ask = async (event) => {
    event.preventDefault();
    choose({ prompt: form.prompt, chat: form.chat ? "1" : "" });
    aborter.current?.abort();
    const own = (aborter.current = new AbortController());
    setBusy(true);
    setAnswers(Object.fromEntries(models.map((name) => [name, { text: "", isOpen: true }])));
    const change = (name, update) => { if (!own.signal.aborted) setAnswers((before) => ({ ...before, [name]: update(before[name]) })); };
    const body = (name) => ({ model: name, prompt: form.prompt, chat: form.chat, max_tokens: Number(form.tokens), temperature: Number(form.temperature) });
    await Promise.all(models.map((name) => stream("playground", body(name), own.signal, (piece) => change(name, (one) => (piece.error ? { ...one, error: piece.error } : { ...one, text: one.text + piece.text })))
      .catch((failure) => { if (failure.name !== "AbortError") change(name, (one) => ({ ...one, error: failure.message })); }).finally(() => change(name, (one) => ({ ...one, isOpen: false })))));
    if (aborter.current === own) setBusy(false);
  };
  const edited = (name) => (event) => setForm({ ...form, [name]: event.target.type === "checkbox" ? event.target.checked : event.target.value });
  return html`<h1>Playground</h1><p class="note">Answers of <code>${found.url}</code>.</p>
    <form onSubmit=${ask}><fieldset class="plain"><legend>Models (up to ${MOST})</legend><div class="row">${found.models.map((name) => html`<label><input type="checkbox" checked=${models.includes(name)} disabled=${!models.includes(name) && models.length >= MOST} onChange=${() => toggle(name)} /> ${name}</label>`)}</div></fieldset>
      <label class="field"><span>Prompt</span><textarea rows="4" required value=${form.prompt} onInput=${edited("prompt")}></textarea></label>
      <div class="row"><label>Most tokens <input type="number" min="1" max="4096" style=${{ width: "90px" }} value=${form.tokens} onInput=${edited("tokens")} /></label>
        <label>Temperature <input type="number" min="0" max="2" step="0.1" style=${{ width: "80px" }} value=${form.temperature} onInput=${edited("temperature")} /></label>
        <label><input type="checkbox" checked=${form.chat} onChange=${edited("chat")} /> with the chat template</label>
        <button class="primary" disabled=${!models.length || isBusy}>Answer</button>${isBusy ? html`<button type="button" onClick=${stop}>Stop</button>` : ""}</div></form>
    <div class="answers">${models.filter((name) => answers[name]).map((name) => html`<section aria-label=${name}><h2>${name}</h2><pre aria-live="polite" aria-busy=${answers[name].isOpen ? "true" : "false"}>${answers[name].text || (answers[name].isOpen ? "…" : "(an empty answer)")}</pre>
      ${answers[name].error ? html`<div class="error" role="alert">${answers[name].error}</div>` : ""}</section>`)}</div>`;
}

// A service for its administrators: all tenants with what they use, and one tenant with its keys and quotas.
import { html, useEffect, useMemo, useState } from "../vendor/preact-htm.js";
import { choose, get, link } from "../api.js";
import { Chart, colour } from "../chart.js";
import { bytes, count, csv, download, duration, moment, money, NONE, number } from "../format.js";
import { Card, Empty, Failure, Meter, Sorted, sorted, useDark, useTitle } from "../parts.js";
import { QUOTAS, TenantChange } from "../tenant_change.js";

const SECONDS_BETWEEN = 10;
const TOKENS = ["trained_tokens", "evaluated_tokens", "prompt_tokens", "completion_tokens"];
const LABELS = { trained_tokens: "trained", evaluated_tokens: "evaluated", prompt_tokens: "prompts", completion_tokens: "answers", gpu_seconds: "GPU time", byte_days: "stored", requests: "requests" };
const SHOWN = { gpu_seconds: duration, byte_days: (value) => `${bytes(Math.round(value))} × days` };
const shown = (kind, value) => (value ? (SHOWN[kind] ?? count)(value) : NONE);
const tokensOf = (used) => TOKENS.reduce((sum, kind) => sum + (used?.[kind] ?? 0), 0);
const nameOf = (project) => `${project.organisation}/${project.name}`;
const VALUES = {
  name: nameOf, weight: (one) => one.weight, jobs: (one) => one.open_jobs, today: (one) => one.tokens_today, stored: (one) => one.stored_bytes,
  gpu: (one) => one.used.gpu_seconds ?? 0, tokens: (one) => tokensOf(one.used),
};

/** What the server says at an address, asked again now and then; not by a page in the background. */
function useAsked(path, query, turn) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const key = JSON.stringify(query);
  useEffect(() => {
    let timer = null, isOver = false;
    const read = async () => {
      if (!document.hidden) {
        try { const next = await get(path, query); if (!isOver) { setFound(next); setError(null); } } catch (failure) { if (!isOver) setError(failure); }
      }
      if (!isOver) timer = setTimeout(read, 1000 * SECONDS_BETWEEN);
    };
    read();
    return () => { isOver = true; clearTimeout(timer); };
  }, [path, key, turn]);
  return [found, error];
}

function Usage({ byDay, name }) {
  const dark = useDark();
  const [zoom, setZoom] = useState(null);
  const days = useMemo(() => byDay.map(({ day }) => day), [byDay]);
  const curves = useMemo(() => [["tokens", "tokens, all kinds", tokensOf, "--accent"], ["trained", "of these trained", (used) => used.trained_tokens ?? 0, "--strong"]].map(([id, label, value, tone]) => ({
    id, label, xs: days.map((_, index) => index), ys: byDay.map(value), tone: colour(tone), strong: true, shape: "circle", dash: id === "trained" ? [5, 3] : undefined })), [byDay, dark]);
  const kinds = [...TOKENS, "gpu_seconds", "byte_days", "requests"];
  const saved = () => download(`${name}.csv`, csv(["day", ...kinds], byDay.map((used) => [used.day, ...kinds.map((kind) => used[kind] ?? 0)])), "text/csv");
  if (!byDay.length) return html`<h2>Usage</h2><p class="note">Nothing was used in the last 30 days.</p>`;
  const last = Math.max(1, days.length - 1);
  return html`<${Chart} title="Tokens a day" name=${name} curves=${curves} xLabel="day in UTC" yLabel="tokens" xText=${(at) => (Number.isInteger(at) ? days[at] ?? "" : "")} range=${[0, last]} zoom=${zoom} onZoom=${setZoom} hot=${null} fromZero height=${240} tools=${html`<button onClick=${saved}>CSV</button>`} />
    <p class="note">Dashed: tokens that were trained.</p>
    <details><summary>Usage of each day</summary><div class="scroll" tabindex="0" role="region" aria-label="Usage of each day"><table class="stacks"><thead><tr><th scope="col">day (UTC)</th>${kinds.map((kind) => html`<th scope="col" class="n">${LABELS[kind]}</th>`)}</tr></thead>
      <tbody>${[...byDay].reverse().map((used) => html`<tr key=${used.day}><td class="lead">${used.day}</td>${kinds.map((kind) => html`<td class="n" data-label=${LABELS[kind]}>${shown(kind, used[kind])}</td>`)}</tr>`)}</tbody></table></div></details>`;
}

/** A number, and how far it is to its quota. */
function Used({ label, value, most, show }) {
  return html`<td class="n" data-label=${label}>${show(value)}${most === null ? "" : html`<br /><span class="note">of ${show(most)}</span><${Meter} share=${most ? value / most : 1} label=${`${label}: share of the quota`} />`}</td>`;
}

function Row({ project, price }) {
  return html`<tr><td class="lead wrap"><a href=${link("service", { project: project.id })}><strong>${nameOf(project)}</strong></a><br /><span class="note">since ${moment(project.created_at)}</span></td>
    <td class="n" data-label="weight">${number(project.weight)}</td>
    <${Used} label="open jobs" value=${project.open_jobs} most=${project.max_open_jobs} show=${count} />
    <${Used} label="tokens today" value=${project.tokens_today} most=${project.max_tokens_per_day} show=${count} />
    <${Used} label="stored" value=${project.stored_bytes} most=${project.max_stored_bytes} show=${bytes} />
    <td class="n" data-label="tokens, 30 days">${count(tokensOf(project.used))}</td>
    <td class="n" data-label="GPU time, 30 days">${shown("gpu_seconds", project.used.gpu_seconds)}${price && project.used.gpu_seconds ? html`<br /><span class="note">${money(project.used.gpu_seconds, price)}</span>` : ""}</td></tr>`;
}

function All({ query, session }) {
  const [turn, setTurn] = useState(0);
  const [found, error] = useAsked("service", {}, turn);
  const [asked, setAsked] = useState(null);
  const again = () => setTurn((count) => count + 1);
  if (!found) return html`<h1>Service</h1>${error ? html`<${Failure} error=${error} again=${again} />` : html`<p class="note" role="status">Reading the tenants …</p>`}`;
  const words = (query.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const sort = query.sort ?? "name";
  const rows = sorted(found.projects.filter((one) => words.every((word) => nameOf(one).toLowerCase().includes(word))), VALUES[sort.replace(/^-/, "")] ?? VALUES.name, sort.startsWith("-"));
  const head = (name, text, numeric) => html`<${Sorted} name=${name} sort=${sort} onSort=${(next) => choose({ sort: next })} numeric=${numeric}>${text}<//>`;
  const sum = (value) => found.projects.reduce((total, one) => total + value(one), 0);
  const saved = () => download("tenants.csv", csv(["project", "id", "weight", "open_jobs", "tokens_today", "stored_bytes", ...Object.keys(QUOTAS), ...Object.keys(LABELS).map((kind) => `${kind}_30_days`)],
    rows.map((one) => [nameOf(one), one.id, one.weight, one.open_jobs, one.tokens_today, one.stored_bytes, ...Object.keys(QUOTAS).map((name) => one[name]), ...Object.keys(LABELS).map((kind) => one.used[kind] ?? 0)])), "text/csv");
  return html`<h1>Service</h1><${Failure} error=${error} again=${again} />
    <div class="cards"><${Card} title="Projects" value=${found.projects.length}><p>of ${found.organisations.length} ${found.organisations.length === 1 ? "organisation" : "organisations"}</p><//>
      <${Card} title="Open jobs" value=${sum((one) => one.open_jobs)}><p>${found.num_waiting} of them wait</p><//>
      <${Card} title="Tokens today" value=${count(sum((one) => one.tokens_today))}><p>trained, evaluated, prompts and answers; the day is UTC's</p><//>
      <${Card} title="GPU time" value=${duration(sum((one) => one.used.gpu_seconds ?? 0))}><p>in the last 30 days${session.gpu_hour ? html`: <strong>${money(sum((one) => one.used.gpu_seconds ?? 0), session.gpu_hour)}</strong>` : ""}</p><//>
      <${Card} title="Stored" value=${bytes(sum((one) => one.stored_bytes))}><p>files, checkpoints and models</p><//></div>
    <div class="row"><label class="grow"><span class="hidden">Filter projects</span><input type="search" placeholder="Filter by organisation or project" value=${query.q ?? ""} onInput=${(event) => choose({ q: event.target.value })} /></label>
      ${session.can_change ? html`<button class="primary" onClick=${() => setAsked({ kind: "add" })}>Add a project</button>` : ""}<button onClick=${saved}>CSV</button></div>
    ${!found.projects.length ? html`<${Empty} title="No project yet"><p>Add one here or on the server, then make a key for it:</p><pre>cohort tenants add acme/research
cohort keys create acme/research</pre><//>` : html`<div class="scroll" tabindex="0" role="region" aria-label="Projects"><table class="stacks"><caption class="hidden">Projects of the service</caption><thead><tr>${head("name", "project")}${head("weight", "weight", true)}${head("jobs", "open jobs", true)}${head("today", "tokens today", true)}${head("stored", "stored", true)}${head("tokens", "tokens, 30 days", true)}${head("gpu", "GPU time, 30 days", true)}</tr></thead>
      <tbody>${rows.map((project) => html`<${Row} key=${project.id} project=${project} price=${session.gpu_hour} />`)}</tbody></table></div>`}
    ${found.projects.length && !rows.length ? html`<p class="note">No project has “${query.q}”. <button onClick=${() => choose({ q: "" })}>Show all ${found.projects.length}</button></p>` : ""}
    <${Usage} byDay=${found.by_day} name="usage" />
    ${session.can_change ? "" : html`<p class="note">This page only shows. To change tenants and keys here, write <code>dashboard: change</code> into service.yaml; <code>cohort tenants</code> and <code>cohort keys</code> on the server do it as well.</p>`}
    ${asked ? html`<${TenantChange} asked=${asked} onClose=${() => setAsked(null)} onDone=${again} />` : ""}`;
}

function KeyRow({ one, canChange, onRevoke }) {
  return html`<tr><td class="lead"><code>${one.prefix}…</code>${one.name ? html`<br /><span class="note">${one.name}</span>` : ""}</td><td data-label="state"><span class=${`badge ${one.state === "valid" ? "live" : "lost"}`}>${one.state}</span></td>
    <td class="wrap" data-label="opens">${one.scopes.join(", ")}</td><td data-label="made">${moment(one.created_at)}</td><td data-label="last used">${one.last_used_at ? moment(one.last_used_at) : "never"}</td><td data-label="ends">${one.expires_at ? moment(one.expires_at) : "never"}</td>
    <td>${canChange && one.state === "valid" ? html`<button class="danger" aria-label=${`Revoke ${one.prefix}…`} onClick=${onRevoke}>Revoke</button>` : ""}</td></tr>`;
}

function details(entry) {
  return Object.entries(entry.details).map(([name, value]) => `${name} ${Array.isArray(value) && value.length === 2 && entry.action.startsWith("project.") ? `${value[0] ?? "none"} → ${value[1] ?? "none"}` : Array.isArray(value) ? value.join(", ") : value || value === 0 ? value : "none"}`).join("; ");
}

function One({ query, session }) {
  const [turn, setTurn] = useState(0);
  const [found, error] = useAsked("service/project", { project: query.project }, turn);
  const [asked, setAsked] = useState(null);
  const again = () => setTurn((count) => count + 1);
  const back = html`<p class="note"><a href=${link("service")}>All projects</a></p>`;
  if (!found) return html`${back}${error ? html`<${Failure} error=${error} again=${again} />` : html`<p class="note" role="status">Reading the project …</p>`}`;
  const { project, keys } = found;
  const ask = (kind, more) => () => setAsked({ kind, project, ...more });
  const change = (kind, text, more) => (session.can_change ? html`<button onClick=${ask(kind, more)}>${text}</button>` : "");
  const used = { max_open_jobs: project.open_jobs, max_tokens_per_day: project.tokens_today, max_stored_bytes: project.stored_bytes };
  return html`${back}<div class="row"><h1 class="grow">${nameOf(project)}</h1><a class="button" href=${link("runs", { project: project.id })}>Its runs</a></div><p class="note"><code>${project.id}</code> · since ${moment(project.created_at)}</p><${Failure} error=${error} again=${again} />
    <div class="cards">${Object.entries(QUOTAS).map(([name, { label, show }]) => html`<${Card} title=${`${label[0].toUpperCase()}${label.slice(1)}`} value=${name in used ? show(used[name]) : project[name] === null ? "no bound" : show(project[name])}><p>${name in used ? (project[name] === null ? "no bound" : `of at most ${show(project[name])}`) : "most that are answered"}</p>
      ${name in used && project[name] !== null ? html`<${Meter} share=${project[name] ? used[name] / project[name] : 1} label=${`${label}: share of the quota`} />` : ""}<//>`)}
      <${Card} title="Weight" value=${number(project.weight)}><p>its share of GPU time while others have work too</p><//></div>
    <div class="row">${change("quotas", "Set quotas")}${change("weight", "Set the weight")}</div>
    <div class="row"><h2 class="grow">Keys</h2>${change("create-key", "Make a key")}</div>
    ${keys.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="Keys"><table class="stacks"><thead><tr><th scope="col">key begins with</th><th scope="col">state</th><th scope="col">opens</th><th scope="col">made</th><th scope="col">last used</th><th scope="col">ends</th><th scope="col"><span class="hidden">Change</span></th></tr></thead>
      <tbody>${keys.map((one) => html`<${KeyRow} key=${one.id} one=${one} canChange=${session.can_change} onRevoke=${ask("revoke-key", { key: one })} />`)}</tbody></table></div>` : html`<p class="note">No key yet: nothing can be sent in its name. On the server: <code>cohort keys create ${nameOf(project)}</code></p>`}
    <${Usage} byDay=${found.by_day} name=${`usage-${project.name}`} />
    <h2>What was changed</h2>${found.audit.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="What was changed"><table class="stacks"><thead><tr><th scope="col">when</th><th scope="col">who</th><th scope="col">what</th><th scope="col">values</th></tr></thead>
      <tbody>${found.audit.map((entry) => html`<tr key=${entry.position}><td class="lead">${moment(entry.at)}</td><td class="wrap" data-label="by">${entry.actor}</td><td data-label="did">${entry.action}</td><td class="wrap">${details(entry)}</td></tr>`)}</tbody></table></div>` : html`<p class="note">Nothing yet.</p>`}
    ${asked ? html`<${TenantChange} asked=${asked} onClose=${() => setAsked(null)} onDone=${again} />` : ""}`;
}

export function Service({ query, session }) {
  useTitle("Service");
  return query.project ? html`<${One} query=${query} session=${session} />` : html`<${All} query=${query} session=${session} />`;
}

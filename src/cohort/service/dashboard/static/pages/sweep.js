// One sweep, live: how far it is, the curves of all trials, its slots, and the table of trials.
import { html, useEffect, useMemo, useState } from "../vendor/preact-htm.js";
import { choose, get, link } from "../api.js";
import { average } from "../axes.js";
import { Chart, Mark } from "../chart.js";
import { Controls } from "../controls.js";
import { filterOf, toggled, varied } from "../filters.js";
import { count, csv, download, duration, localised, moment, money, number, percent, setting } from "../format.js";
import { Job, useJob } from "../job.js";
import { Card, Failure, Meter, Sorted, sorted, useDark, useTitle } from "../parts.js";
import { Effect, Parallel } from "../relations.js";
import { COLUMNS, RolloutCharts, useRollouts } from "../rollouts.js";
import { useRun } from "../run_data.js";
import { Slots } from "../slots.js";

// a row of a phone is several lines high: what comes below the table would be far away
const FIRST_ROWS = matchMedia("(max-width: 640px)").matches ? 8 : 100;

/** Where the result is, or how the run goes on; of a service, its job says that. */
function Place({ data }) {
  if (!data.directory) return "";
  if (data.state === "done") return html`<p class="note">The best adapter is in <code>${data.directory}/best</code>, in PEFT's format; the report is <code>${data.directory}/report.html</code>.</p>`;
  return data.state === "stopped" ? html`<p class="note">No process trains it now. <code>cohort resume ${data.directory}</code> goes on where it was.</p>` : "";
}

const nameOf = (data, name) => data?.label ?? (name === "." ? data?.title : name);

function Head({ data, name, connection, price, children }) {
  const left = data.state === "done" ? "done" : duration(data.seconds_left);
  const counts = Object.entries(data.counts).filter(([, amount]) => amount).map(([state, amount]) => `${amount} ${state === "parked" ? "paused" : state}`).join(", ");
  const ahead = money(data.seconds_left, price, data.num_devices);
  const shown = { live: ["live", "live"], lost: ["lost", "connection lost, trying again"], closed: ["lost", "connection closed"] }[connection] ?? ["", "connecting"];
  return html`<div class="row"><h1 class="grow">${nameOf(data, name)}</h1><span class=${`badge ${shown[0]}`} role="status">${data.state === "running" || connection !== "live" ? shown[1] : "up to date"}</span></div>
    <p class="note">${[data.base_model ?? data.model, data.device, data.directory && `${data.state}${data.holder ? ` (${localised(data.holder)})` : ""}`, `written ${moment(data.updated_at)}`].filter(Boolean).join(" · ")}</p>
    ${data.verdicts.map((text) => html`<p>${text[0].toUpperCase()}${text.slice(1)}.</p>`)}
    <${Place} data=${data} />${children}
    ${data.missing.length ? html`<div class="error">Results are gone: ${data.missing.join(", ")}. ${data.directory ? html`<code>cohort resume</code> writes them again.` : ""}</div>` : ""}
    <div class="cards">
      <${Card} title=${`Best ${data.metric.label} so far`} value=${number(data.best?.value)}><p>${data.best ? html`<a href=${link("trial", { run: name, trial: data.best.trial })}>trial ${data.best.trial}</a>, step ${data.best.step}${data.final_rows ? `; ${number(data.trials.get(data.best.trial)?.final)} on ${data.final_rows} rows` : ""}` : "no evaluation yet"}${data.base_value !== null ? `; base model ${number(data.base_value)}` : ""}</p><//>
      <${Card} title="Time left" value=${left}><p>${duration(data.seconds)} so far</p><${Meter} share=${data.share_done} label="Steps done" /><p>${percent(data.share_done)} of all steps</p><//>
      <${Card} title="Cost left" value=${data.state === "done" ? "none" : data.cost_tokens_left === null ? "–" : `${count(data.cost_tokens_left)} tokens`}><p>${data.state !== "done" && ahead ? html`<strong>${ahead}</strong>; ` : ""}${count(data.cost_tokens)} tokens${price ? `, ${money(data.seconds, price, data.num_devices)},` : ""} so far${price ? html`<br />at ${money(3600, price)} an hour for ${data.num_devices === 1 ? "one device" : `each of ${data.num_devices} devices`}` : ""}</p><//>
      <${Card} title="Saved by early exits" value=${`${count(data.saved_tokens)} tokens`}><p>${percent(data.planned_tokens ? data.saved_tokens / data.planned_tokens : null)} of the full grid; spent ${count(data.cost_tokens)} of ${count(data.planned_tokens)} tokens, as much as ${number(data.full_runs, 3)} full runs</p><//>
      <${Card} title="Trials" value=${data.trials.size}><p>${counts}</p><//>
      <${Card} title="Speed" value=${data.state === "running" && data.tokens_per_second ? `${count(data.tokens_per_second)} tokens/s` : "–"}><p>${fill(data)}</p><//>
    </div>`;
}

function fill(data) {
  const inUse = data.stays.filter(([, , , stop]) => stop === null).length;
  const slots = data.num_slots ?? new Set(data.stays.map(([slot]) => slot)).size;
  const ranks = data.ranks.map((one) => `GPU ${one.rank}: ${percent(one.busy)} busy`).join(", ");
  return data.state === "running" ? `${inUse} of ${slots} slots in use${ranks ? `; ${ranks}` : ""}` : `${slots} slots`;
}

/** The trials as curves: their colours, marks and points, as the viewer chose. */
function useCurves({ data, train, evaluations, zoomed, kind, share, smooth, passes, pinned, dark }) {
  return useMemo(() => {
    if (!data || !train || !evaluations) return [];
    const source = kind === "train" ? { ...train.curves, ...zoomed?.curves } : evaluations[kind === "metric" ? "metric" : "loss"];
    const found = [];
    for (const row of data.trials.values()) {
      const curve = source[row.id];
      if (!curve || !passes(row)) continue;
      const stride = zoomed?.curves[row.id] ? zoomed.stride : train.stride;
      const outcome = data.outcomes[row.outcome];
      const isFinal = ["completed", "stopped", "failed"].includes(row.status);
      found.push({
        id: row.id, label: `trial ${row.id}`, note: `${outcome.label}; ${row.steps} of ${row.planned} steps`,
        xs: share ? curve[0].map((step) => (100 * step) / row.planned) : curve[0],
        ys: kind === "train" && smooth ? average(curve[1], data.ema_weight, stride) : curve[1],
        tone: outcome.colours[dark ? 1 : 0], shape: isFinal ? outcome.shape : null, best: data.best?.trial === row.id, strong: pinned.has(row.id),
      });
    }
    return found;
  }, [data, train, evaluations, zoomed, kind, share, smooth, passes, pinned, dark]);
}

/** Finer points of the steps that are zoomed to, where the first look skipped some. */
function useZoomed(name, train, steps) {
  const [found, setFound] = useState(null);
  const key = steps && train && train.stride > 1 ? `${steps[0]}-${steps[1]}` : "";
  useEffect(() => {
    setFound(null);
    if (!key) return undefined;
    const aborter = new AbortController();
    const timer = setTimeout(() => get("run/curves", { run: name, first: steps[0], last: steps[1] }, aborter.signal).then((next) => next.stride < train.stride && setFound(next), () => {}), 150);
    return () => { clearTimeout(timer); aborter.abort(); };
  }, [key]);
  return found;
}

function Key({ data, dark }) {
  const counts = {};
  for (const row of data.trials.values()) counts[row.outcome] = (counts[row.outcome] ?? 0) + 1;
  return html`<ul class="key">${data.best ? html`<li><${Mark} shape="star" tone=${dark ? "#eceff3" : "#16191d"} />best trial</li>` : ""}
    ${Object.entries(data.outcomes).filter(([name]) => counts[name]).map(([name, outcome]) => html`<li><${Mark} shape=${outcome.shape} tone=${outcome.colours[dark ? 1 : 0]} />${outcome.label}: ${counts[name]}</li>`)}</ul>`;
}

const OWN_COLUMNS = { id: (row) => row.id, place: (row) => row.place, best: (row) => row.best, final: (row) => row.final, loss: (row) => row.loss, steps: (row) => row.steps / row.planned, tokens: (row) => row.tokens, state: (row) => row.state };

function Trials({ data, rows, names, rollouts, sort, name, hot, onHot, pinned, onPin, dark, onControl, canControl, query }) {
  const [all, setAll] = useState(false);
  const shown = all ? rows : rows.slice(0, FIRST_ROWS);
  const onSort = (next) => choose({ sort: next });
  const drawn = COLUMNS.filter(([key]) => Object.values(rollouts?.latest ?? {}).some((own) => key in own));
  const latest = (row, key) => rollouts.latest[row.id]?.[key] ?? null;
  const head = (key, text, numeric) => html`<${Sorted} name=${key} sort=${sort} onSort=${onSort} numeric=${numeric}>${text}<//>`;
  const saved = () => download(`${data.title}-trials.csv`, csv(
    ["trial", "place", "state", ...names, data.metric.name, `${data.metric.name}_in_final_comparison`, "validation_loss", "best_step", "steps", "planned_steps", "tokens", "last_train_loss", ...drawn.map(([key]) => key)],
    rows.map((row) => [row.id, row.place, row.state, ...names.map((one) => row.parameters[one]), row.best, row.final, row.best_loss, row.best_step, row.steps, row.planned, row.tokens, row.loss, ...drawn.map(([key]) => latest(row, key))]),
  ), "text/csv");
  return html`<div class="row"><h2 class="grow">Trials${rows.length < data.trials.size ? ` (${rows.length} of ${data.trials.size})` : ""}</h2><button onClick=${saved}>CSV</button>
      ${pinned.size ? html`<a class="button" href=${link("compare", { trials: [...pinned].map((id) => `${name}:${id}`).join("|") })}>Compare ${pinned.size}</a><button onClick=${() => choose({ pin: "" })}>Unpin all</button>` : ""}</div>
    <div class="scroll" tabindex="0" role="region" aria-label="Trials"><table class="stacks"><caption class="hidden">Trials of the sweep</caption><thead><tr><th scope="col"><span class="hidden">Pin</span></th>${head("id", "trial", true)}${head("place", "place", true)}${head("state", "state")}
      ${names.map((one) => head(one, one, typeof rows[0]?.parameters[one] === "number"))}${head("best", data.metric.label, true)}${data.final_rows ? head("final", `on ${data.final_rows} rows`, true) : ""}${head("loss", "train loss", true)}${drawn.map(([key, text]) => head(`last ${key}`, text, true))}${head("steps", "steps", true)}${head("tokens", "tokens", true)}${canControl ? html`<th scope="col">change</th>` : ""}</tr></thead>
      <tbody>${shown.map((row) => html`<tr key=${row.id} class=${`${data.best?.trial === row.id ? "best" : ""} ${hot === row.id ? "hot" : ""}`} onPointerEnter=${() => onHot(row.id)} onPointerLeave=${() => onHot(null)}>
        <td><input type="checkbox" aria-label=${`Pin trial ${row.id}`} checked=${pinned.has(row.id)} onChange=${() => onPin(row.id)} /></td>
        <td class="n lead" data-label="trial"><a href=${link("trial", { run: name, trial: row.id })} aria-label=${`Trial ${row.id}`}>${row.id}</a></td>
        <td class="n" data-label="place">${row.place ?? ""}</td>
        <td data-label="state"><span class="dot" style=${{ background: data.outcomes[row.outcome]?.colours[dark ? 1 : 0] }}></span>${row.state}</td>
        ${names.map((one) => html`<td class=${typeof row.parameters[one] === "number" ? "n" : ""} data-label=${one}>${setting(row.parameters[one])}</td>`)}
        <td class="n" data-label=${data.metric.label}>${number(row.best)}</td>${data.final_rows ? html`<td class="n" data-label=${row.final === null ? null : `on ${data.final_rows} rows`}>${row.final === null ? "" : number(row.final)}</td>` : ""}<td class="n" data-label="train loss">${number(row.loss)}</td>${drawn.map(([key, text]) => html`<td class="n" data-label=${text}>${number(latest(row, key))}</td>`)}
        <td class="n" data-label="steps">${row.steps}/${row.planned}</td><td class="n" data-label="tokens">${count(row.tokens)}</td>
        ${canControl ? html`<td><div class="row" style=${{ margin: 0, gap: "4px", flexWrap: "nowrap" }}>${row.can.map((kind) => html`<button onClick=${() => onControl({ kind, trial: row.id })} aria-label=${`${kind} trial ${row.id}`}>${kind}</button>`)}</div></td>` : ""}</tr>`)}</tbody></table></div>
    ${data.final_rows ? html`<p class="note">The best few were measured once more, on ${data.final_rows} rows; their places follow from that.</p>` : ""}
    ${rows.length > shown.length ? html`<div class="row"><button onClick=${() => setAll(true)}>Show all ${rows.length} trials</button><span class="note">The first ${FIRST_ROWS} are shown.</span></div>` : ""}
    ${!rows.length ? html`<p class="note">No trial passes “${query.q}”. <button onClick=${() => choose({ q: "" })}>Show all ${data.trials.size}</button></p>` : ""}`;
}

/** Values of searched hyperparameters to filter by with one click. */
function Facets({ rows, names, text }) {
  const facets = names.map((name) => [name, [...new Set(rows.map((row) => row.parameters[name]))].filter((value) => ["number", "string", "boolean"].includes(typeof value))])
    .filter(([, values]) => values.length > 1 && values.length <= 8);
  if (!facets.length) return null;
  const words = new Set((text ?? "").split(/\s+/));
  return html`<details><summary>Filter by value</summary>${facets.map(([name, values]) => html`<div class="row" role="group" aria-label=${name}><span class="note">${name}</span>
    ${values.sort((a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b)))).map((value) => html`<button aria-pressed=${words.has(`${name}=${value}`) ? "true" : "false"} onClick=${() => choose({ q: toggled(text, `${name}=${value}`) })}>${setting(value)}</button>`)}</div>`)}</details>`;
}

/** Tokens a second and slots in use over run time. */
function Pace({ name, data }) {
  const [pace, setPace] = useState(null);
  const [zoom, setZoom] = useState(null);
  useEffect(() => { get("run/pace", { run: name }).then(({ curve }) => setPace({ curve, until: data.seconds }), () => {}); }, [name, data.generation]);
  // what came since is in the header of each event: the rate of its last minute
  useEffect(() => { setPace((before) => (before && data.tokens_per_second && data.seconds > (before.curve[0].at(-1) ?? 0) ? { ...before, curve: [[...before.curve[0], data.seconds], [...before.curve[1], data.tokens_per_second]] } : before)); }, [data.seconds]);
  const most = Math.max(1e-3, data.seconds);
  const [divisor, unit] = most > 7200 ? [3600, "hours"] : most > 180 ? [60, "minutes"] : [1, "seconds"];
  const speed = useMemo(() => (pace ? [{ id: "tokens", label: "tokens a second", xs: pace.curve[0].map((at) => at / divisor), ys: pace.curve[1], tone: "#0072b2", strong: true }] : []), [pace, divisor]);
  const fill = useMemo(() => {
    const changes = data.stays.flatMap(([, , start, stop]) => [[start, 1], ...(stop === null ? [] : [[stop, -1]])]).sort((a, b) => a[0] - b[0]);
    const [xs, ys] = [[0], [0]];
    for (const [at, by] of changes) {
      // a trial that follows another in the same moment leaves no gap
      if (xs.length > 1 && xs.at(-1) === at / divisor) { ys[ys.length - 1] += by; continue; }
      xs.push(at / divisor, at / divisor); ys.push(ys.at(-1), ys.at(-1) + by);
    }
    return [{ id: "slots", label: "slots in use", xs: [...xs, most / divisor], ys: [...ys, ys.at(-1)], tone: "#0072b2", strong: true }];
  }, [data.stays, data.seconds]);
  const shared = { range: [0, most / divisor], zoom, onZoom: setZoom, xLabel: `run time, ${unit}`, height: 200, hot: null, fromZero: true };
  return html`<div class="two"><${Chart} title="Tokens a second" name="tokens-a-second" curves=${speed} yLabel="tokens/s" ...${shared} /><${Chart} title=${`Slots in use${data.num_slots ? ` of ${data.num_slots}` : ""}`} name="slots-in-use" curves=${fill} yLabel="slots" ...${shared} /></div>`;
}

/** What comes below the first screen is made once that is drawn. */
function Later({ children }) {
  const [isNow, setNow] = useState(false);
  useEffect(() => { const timer = setTimeout(() => setNow(true), 30); return () => clearTimeout(timer); }, []);
  return isNow ? children : null;
}

export function Sweep({ query, session }) {
  const name = query.run ?? ".";
  const { data, train, evaluations, error, connection, again } = useRun(name);
  const [hot, setHot] = useState(null);
  const [asked, setAsked] = useState(null);
  const dark = useDark();
  const [job, askJob] = useJob(name, session.has_jobs);
  useTitle(nameOf(data, name));
  const kind = query.curve ?? "train", share = query.x === "share", smooth = query.smooth !== "0";
  const pinned = useMemo(() => new Set((query.pin ?? "").split(",").filter(Boolean).map(Number)), [query.pin]);
  const passes = useMemo(() => filterOf(query.q), [query.q]);
  const most = useMemo(() => (data ? Math.max(1, ...[...data.trials.values()].map((row) => row.planned)) : 1), [data]);
  const zoom = useMemo(() => { const parts = (query.zoom ?? "").split("~").map(Number); return parts.length === 2 && parts.every(Number.isFinite) && parts[1] > parts[0] ? parts : null; }, [query.zoom]);
  const steps = zoom && (share ? [Math.floor((zoom[0] / 100) * most), Math.ceil((zoom[1] / 100) * most)] : [Math.floor(zoom[0]), Math.ceil(zoom[1])]).map((step) => Math.max(1, Math.min(most, step)));
  const zoomed = useZoomed(name, train, steps);
  const curves = useCurves({ data, train, evaluations, zoomed, kind, share, smooth, passes, pinned, dark });
  const rollouts = useRollouts(name, data);
  const rows = useMemo(() => {
    if (!data) return [];
    const sort = query.sort ?? "place";
    const key = sort.replace(/^-/, "");
    return sorted([...data.trials.values()].filter(passes), OWN_COLUMNS[key] ?? (key.startsWith("last ") ? (row) => rollouts?.latest[row.id]?.[key.slice(5)] ?? null : (row) => row.parameters[key]), sort.startsWith("-"));
  }, [data, passes, query.sort, rollouts]);
  const names = useMemo(() => (data ? varied([...data.trials.values()]) : []), [data]);
  const back = html`<p class="note"><a href=${link("runs")}>All runs</a></p>`;
  const own = html`<${Job} job=${job} run=${name} again=${askJob} />`;
  if (!data) return html`${back}${job ? html`<h1>${job.label}</h1>${own}` : ""}${job?.absent ? "" : error ? html`<${Failure} error=${error} again=${error.status === 404 ? null : again} />` : html`<p class="note" role="status">Reading the run …</p>`}`;
  const onZoom = (next) => choose({ zoom: next ? next.map((value) => Number(value.toPrecision(6))).join("~") : "" });
  const canControl = data.may_change && !data.is_over;
  const onPin = (id) => { const next = new Set(pinned); if (!next.delete(id)) next.add(id); choose({ pin: [...next].join(",") }); };
  const open = (id) => { location.hash = link("trial", { run: name, trial: id }); };
  const finest = kind === "train" && (zoomed?.stride ?? train.stride) > 1 ? `Every ${zoomed?.stride ?? train.stride}th step is drawn; zoom in for each.` : "";
  const yLabel = kind === "metric" ? data.metric.label : `${kind === "train" ? "train" : "validation"} loss${data.loss_unit ? `, ${data.loss_unit}` : ""}`;
  const tools = html`<select aria-label="Which curves" value=${kind} onChange=${(event) => choose({ curve: event.target.value })}>
      <option value="train">train loss</option><option value="validation">validation loss</option>${data.metric.name !== "loss" ? html`<option value="metric">${data.metric.label}</option>` : ""}</select>
    <select aria-label="Over what" value=${share ? "share" : "steps"} onChange=${(event) => choose({ x: event.target.value === "share" ? "share" : "", zoom: "" })}><option value="steps">over steps</option><option value="share">over % of planned steps</option></select>
    ${kind === "train" ? html`<button aria-pressed=${smooth ? "true" : "false"} onClick=${() => choose({ smooth: smooth ? "0" : "" })}>running average</button>` : ""}`;
  return html`${back}<${Failure} error=${error} again=${again} /><${Head} data=${data} name=${name} connection=${connection} price=${session.gpu_hour}>${own}<//>
    ${canControl ? html`<div class="row"><button onClick=${() => setAsked({ kind: "add" })}>Add a trial</button>${data.state === "running" && !session.has_jobs ? html`<button class="danger" onClick=${() => setAsked({ kind: "stop-run" })}>Stop the run</button>` : ""}</div>` : ""}
    <div class="row"><label class="grow"><span class="hidden">Filter trials</span><input type="search" placeholder="Filter: r=16 learning_rate>1e-4 running" value=${query.q ?? ""} onInput=${(event) => choose({ q: event.target.value })} /></label></div>
    <${Facets} rows=${[...data.trials.values()]} names=${names} text=${query.q} />
    <${Chart} title="Loss curves" name=${`${data.title}-${kind}`} curves=${curves} xLabel=${share ? "planned steps done, %" : "optimizer steps"} yLabel=${yLabel} range=${share ? [0, 100] : [0, most]} zoom=${zoom} onZoom=${onZoom} hot=${hot} onHot=${setHot} onPick=${open} tools=${tools} />
    <${Key} data=${data} dark=${dark} />${finest ? html`<p class="note">${finest}</p>` : ""}
    <${Trials} data=${data} rows=${rows} names=${names} rollouts=${rollouts} sort=${query.sort ?? "place"} name=${name} hot=${hot} onHot=${setHot} pinned=${pinned} onPin=${onPin} dark=${dark} onControl=${setAsked} canControl=${canControl} query=${query} />
    <${Later}><${RolloutCharts} found=${rollouts} data=${data} passes=${passes} hot=${hot} onHot=${setHot} onPick=${open} dark=${dark} pinned=${pinned} range=${[0, most]} /><h2>Slots</h2><${Slots} stays=${data.stays} seconds=${data.seconds} trials=${data.trials} outcomes=${data.outcomes} best=${data.best?.trial ?? null} hot=${hot} onHot=${setHot} onPick=${open} isRunning=${data.state === "running"} />
    <${Pace} name=${name} data=${data} />
    <h2>Hyperparameters</h2><${Parallel} rows=${rows} axes=${data.axes} outcomes=${data.outcomes} metric=${data.metric} best=${data.best?.trial ?? null} hot=${hot} onHot=${setHot} onPick=${open} dark=${dark} />
    ${rows.filter((row) => row.best !== null).length > 1 ? html`<div class="three">${data.axes.map(({ name: one, log }) => html`<${Effect} key=${one} rows=${rows} name=${one} isLog=${log} outcomes=${data.outcomes} metric=${data.metric} best=${data.best?.trial ?? null} hot=${hot} onHot=${setHot} dark=${dark} />`)}</div>${data.axes.length ? html`<p class="note">Each mark is a trial, each bar the median of a value. The filter above holds here, too.</p>` : ""}` : ""}<//>
    ${asked ? html`<${Controls} run=${name} asked=${asked} data=${data} onClose=${() => setAsked(null)} />` : ""}`;
}

// The machine that the dashboard runs on: what `cohort doctor` finds.
import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { get } from "../api.js";
import { bytes } from "../format.js";
import { Card, Failure, Meter, useTitle } from "../parts.js";

export function System() {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const [turn, setTurn] = useState(0);
  useTitle("System");
  useEffect(() => { setError(null); get("machine").then(setFound, setError); }, [turn]);
  const again = () => setTurn(turn + 1);
  if (error) return html`<h1>System</h1><${Failure} error=${error} again=${again} />`;
  if (!found) return html`<h1>System</h1><p class="note" role="status">Examining the machine; torch takes a few seconds to load …</p>`;
  const disk = found.runs_disk;
  const rows = { system: found.system, python: found.python, "will use": `${found.used_device}, model in ${found.used_dtype}`, "memory of a run": found.used_memory, ...found.used_kernels,
    ...Object.fromEntries(Object.entries(found.formats).map(([name, text]) => [`weights as ${name}`, text])), "optional, missing": found.missing_packages.join(", ") };
  return html`<h1>System</h1><p class="note">The machine that this dashboard runs on, as <code>cohort doctor</code> shows it.</p>
    ${found.warnings.map((text) => html`<div class="error">${text}</div>`)}
    <div class="cards"><${Card} title="Processor" value=${`${found.num_cpus} usable`}><p>${found.cpu}; torch uses ${found.torch_threads}</p><//>
      <${Card} title="Memory" value=${bytes(found.memory_free_bytes)}><p>free of ${bytes(found.memory_total_bytes)}, when this page was first opened</p><${Meter} share=${1 - found.memory_free_bytes / found.memory_total_bytes} label="Memory in use" /><//>
      <${Card} title="Disk of the runs" value=${bytes(disk.free_bytes)}><p>free of ${bytes(disk.total_bytes)}</p><${Meter} share=${1 - disk.free_bytes / disk.total_bytes} label="Disk in use" /><//>
      ${found.gpus.length ? found.gpus.map((gpu) => html`<${Card} title=${`GPU ${gpu.index}`} value=${bytes(gpu.free_bytes)}><p>free of ${bytes(gpu.total_bytes)}; ${gpu.name}, ${gpu.backend}</p><${Meter} share=${1 - gpu.free_bytes / gpu.total_bytes} label=${`Memory of GPU ${gpu.index} in use`} /><//>`) : html`<${Card} title="GPU" value="none"><p>that torch can use</p><//>`}</div>
    <h2>What Cohort uses</h2><dl class="facts">${Object.entries(rows).filter(([, text]) => text).map(([name, text]) => html`<div><dt>${name}</dt><dd>${text}</dd></div>`)}</dl>
    <h2>Versions</h2><dl class="facts">${Object.entries(found.versions).map(([name, text]) => html`<div><dt>${name}</dt><dd>${text}</dd></div>`)}</dl>`;
}

// What trials report that train on their own answers: rewards, lengths, entropy and the like by step, and answers to read.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { get } from "./api.js";
import { average } from "./axes.js";
import { Chart } from "./chart.js";
import { number } from "./format.js";

const AGAIN_MILLISECONDS = 4000;
export const COLUMNS = [["reward", "reward"], ["answer_length", "answer length"], ["entropy", "entropy"], ["kl", "KL"]];

/** The numbers of a run's steps, read again as it goes on: {charts, latest, stride}; null before they are there. */
export function useRollouts(name, data, trial) {
  const [found, setFound] = useState(null);
  const read = useRef({ at: 0, position: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    // most runs have none, and are asked once
    if (!data || (found && !found.charts.length) || read.current.position === `${data.generation} ${data.position}`) return undefined;
    const wait = Math.max(0, read.current.at + AGAIN_MILLISECONDS - Date.now());
    const aborter = new AbortController();
    const timer = setTimeout(() => {
      read.current = { at: Date.now(), position: `${data.generation} ${data.position}` };
      get("run/rollouts", trial === undefined ? { run: name } : { run: name, trials: trial }, aborter.signal).then(setFound, () => setTurn((count) => count + 1));
    }, wait);
    return () => { clearTimeout(timer); aborter.abort(); };
  }, [name, trial, data?.generation, data?.position, found === null, turn]);
  return found;
}

/** A chart for each number; those of trials that pass the filter. */
export function RolloutCharts({ found, data, passes, hot, onHot, onPick, dark, pinned, range }) {
  const [zoom, setZoom] = useState(null);
  const charts = useMemo(() => (found?.charts ?? []).map((chart) => ({
    ...chart,
    lines: [...data.trials.values()].filter((row) => chart.curves[row.id] && (!passes || passes(row))).map((row) => {
      const outcome = data.outcomes[row.outcome];
      const [xs, ys] = chart.curves[row.id];
      return { id: row.id, label: `trial ${row.id}`, note: outcome.label, xs, ys: average(ys, data.ema_weight, found.stride), tone: outcome.colours[dark ? 1 : 0], best: data.best?.trial === row.id, strong: pinned?.has(row.id) ?? true };
    }),
  })), [found, data, passes, dark, pinned]);
  if (!charts.length) return null;
  return html`<h2>Answers</h2><div class="two">${charts.map((chart) => html`<${Chart} key=${chart.name} title=${chart.caption} name=${`answers-${chart.name}`} curves=${chart.lines} xLabel="optimizer steps" yLabel=${chart.unit} range=${range} zoom=${zoom} onZoom=${setZoom} hot=${hot ?? null} onHot=${onHot} onPick=${onPick} height=${200} whole=${true} />`)}</div>
    <p class="note">Running averages of the answers that the trials draw and train on.</p>`;
}

/** Answers of one trial, from its first step to its last: of each step the best and the worst of a prompt. */
export function Answers({ answers }) {
  if (!answers?.length) return null;
  return html`<h2>Answers to read</h2><div class="scroll" tabindex="0" role="region" aria-label="Answers"><table><thead><tr><th scope="col" class="n">step</th><th scope="col" class="n">reward</th><th scope="col">prompt</th><th scope="col">answer</th></tr></thead>
    <tbody>${answers.map((one) => html`<tr><td class="n">${one.step}</td><td class="n">${number(one.reward)}</td><td class="wrap said">${one.prompt}</td><td class="wrap said">${one.text}</td></tr>`)}</tbody></table></div>
    <p class="note">Of some steps, the best and the worst answer to the prompt whose rewards differ most.</p>`;
}

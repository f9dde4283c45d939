// A run as a page holds it: loaded once, then kept up to date by the server's events.
import { useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { events, get } from "./api.js";

// points of a trial beyond which every other one is dropped, as the server would have it
const MOST_EACH = 1600;

function merged(data, change) {
  const trials = new Map(data.trials);
  for (const row of change.trials) trials.set(row.id, row);
  const stays = [...data.stays];
  for (const [place, stay] of change.stays) stays[place] = stay;
  return { ...data, ...change.header, position: change.position, outcomes: change.outcomes, trials, stays };
}

function added(curves, points, stride) {
  if (!points.length) return curves;
  const next = { ...curves };
  const fresh = new Set();
  for (const [trial, step, value] of points) {
    if (step % stride && step !== 1) continue;
    if (!fresh.has(trial)) {
      // a copy, so that what draws sees that it changed
      next[trial] = next[trial] ? [[...next[trial][0]], [...next[trial][1]]] : [[], []];
      fresh.add(trial);
    }
    const [steps, values] = next[trial];
    // after a lost connection the server may repeat what was heard
    if (steps.length && steps.at(-1) >= step) continue;
    steps.push(step); values.push(value);
  }
  return next;
}

function halved(train) {
  const stride = 2 * train.stride;
  const curves = {};
  for (const [trial, [steps, values]] of Object.entries(train.curves)) {
    const kept = steps.map((step, index) => index).filter((index) => index === 0 || steps[index] % stride === 0);
    curves[trial] = [kept.map((index) => steps[index]), kept.map((index) => values[index])];
  }
  return { ...train, stride, curves };
}

/** The run of this name: {data, train, evaluations, error, link: live | lost | closed, again}. */
export function useRun(name) {
  const [held, setHeld] = useState({});
  const [error, setError] = useState(null);
  const [connection, setConnection] = useState("");
  const [turn, setTurn] = useState(0);
  const stride = useRef(1);
  useEffect(() => {
    let close = null, isOver = false, timer = null;
    const later = () => { timer = setTimeout(() => setTurn((count) => count + 1), 3000); };
    const changed = (change) => {
      if (isOver) return;
      if (change.reload) { close?.(); setTurn((count) => count + 1); return; }
      if (change.error) { close?.(); setError(new Error(change.error)); later(); return; }
      setHeld((held) => {
        let train = held.train && { ...held.train, curves: added(held.train.curves, change.steps, held.train.stride) };
        if (train && Object.values(train.curves).some(([steps]) => steps.length > MOST_EACH)) train = halved(train);
        if (train) stride.current = train.stride;
        const evaluations = held.evaluations && {
          loss: added(held.evaluations.loss, change.evaluations.map(([trial, step, loss]) => [trial, step, loss]), 1),
          metric: added(held.evaluations.metric, change.evaluations.filter(([, , , value]) => value !== null && held.data.metric.name !== "loss").map(([trial, step, , value]) => [trial, step, value]), 1),
        };
        return { data: merged(held.data, change), train, evaluations };
      });
    };
    const open = async () => {
      try {
        // curves come while the trials are still counted: both are drawn as soon as they are there
        const [data, train, evaluations] = await Promise.all([get("run", { run: name }), get("run/curves", { run: name }), get("run/evaluations", { run: name })]);
        if (isOver) return;
        stride.current = train.stride;
        setHeld({ data: { ...data, trials: new Map(data.trials.map((row) => [row.id, row])) }, train, evaluations });
        setError(null);
        close = events({ run: name, after: `${data.generation}:${data.number}:${data.position}`, stride: train.stride }, { change: changed, state: (state) => isOver || setConnection(state) });
      } catch (failure) {
        if (isOver) return;
        setError(failure);
        if (failure.status !== 404) later();
      }
    };
    open();
    return () => { isOver = true; close?.(); clearTimeout(timer); };
  }, [name, turn]);
  return { ...held, error, connection, again: () => setTurn((count) => count + 1) };
}

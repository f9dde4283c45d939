// Which trial was in which slot when.
import { html, useRef, useState } from "./vendor/preact-htm.js";
import { axis } from "./axes.js";
import { colour, isDark, savePng, useCanvas } from "./chart.js";
import { duration } from "./format.js";

const LEFT = 58, RIGHT = 12, TOP = 6, BOTTOM = 36;

export function Slots({ stays, seconds, trials, outcomes, best, hot, onHot, onPick, isRunning }) {
  const [tip, setTip] = useState(null);
  const places = useRef([]);
  const slots = [...new Set(stays.map(([slot]) => slot))].sort((a, b) => a - b);
  const rowHeight = Math.min(24, Math.max(5, 460 / Math.max(1, slots.length)));
  const height = Math.round(rowHeight * slots.length + TOP + BOTTOM);
  const end = Math.max(seconds, 1e-6, ...stays.map(([, , , stop]) => stop ?? 0));
  const [divisor, unit] = end > 7200 ? [3600, "hours"] : end > 180 ? [60, "minutes"] : [1, "seconds"];
  const [canvas, width] = useCanvas((context, size) => {
    const x = axis(0, end / divisor);
    const [right, base] = [size.width - RIGHT, size.height - BOTTOM];
    const [soft, line, ink, paper] = ["--soft", "--line", "--ink", "--paper"].map(colour);
    const at = (time) => LEFT + x.share(time / divisor) * (right - LEFT);
    context.font = "11px system-ui, sans-serif"; context.strokeStyle = line; context.fillStyle = soft; context.textBaseline = "top"; context.textAlign = "center";
    for (const tick of x.ticks) {
      const pixel = Math.round(LEFT + x.share(tick) * (right - LEFT)) + 0.5;
      if (pixel > right + 1) continue;
      context.beginPath(); context.moveTo(pixel, TOP); context.lineTo(pixel, base + 4); context.stroke();
      context.fillText(String(tick), pixel, base + 6);
    }
    context.fillText(`run time, ${unit}`, (LEFT + right) / 2, size.height - 14);
    context.textAlign = "right"; context.textBaseline = "middle";
    slots.forEach((slot, row) => { if (rowHeight > 10 || row % 5 === 0) context.fillText(`slot ${slot}`, LEFT - 6, TOP + (row + 0.5) * rowHeight); });
    places.current = stays.map(([slot, trial, start, stop]) => {
      const [left, top] = [at(start), TOP + slots.indexOf(slot) * rowHeight];
      const box = { trial, slot, start, stop, left, top, width: Math.max(1.5, at(stop ?? end) - left - 0.6), height: rowHeight - 1.2 };
      const outcome = outcomes[trials.get(trial)?.outcome];
      context.globalAlpha = hot === null || hot === trial ? 0.85 : 0.3;
      context.fillStyle = trial === best ? ink : outcome?.colours[isDark() ? 1 : 0] ?? soft;
      context.beginPath(); context.roundRect(box.left, box.top, box.width, box.height, 2); context.fill();
      const label = String(trial);
      context.font = "600 11px system-ui, sans-serif";
      if (rowHeight > 12 && box.width > context.measureText(label).width + 8) {
        context.globalAlpha = 1; context.textAlign = "left"; context.textBaseline = "middle";
        context.strokeStyle = trial === best ? ink : "rgb(0 0 0 / 50%)"; context.lineWidth = 2;
        context.strokeText(label, box.left + 4, box.top + box.height / 2 + 0.5);
        context.fillStyle = trial === best ? paper : "#fff"; context.fillText(label, box.left + 4, box.top + box.height / 2 + 0.5);
      }
      return box;
    });
    context.globalAlpha = 1;
  }, height, [stays, seconds, trials, hot, outcomes]);
  const found = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const [atX, atY] = [event.clientX - box.left, event.clientY - box.top];
    return places.current.find((one) => atX >= one.left && atX <= one.left + one.width && atY >= one.top && atY <= one.top + one.height);
  };
  const moved = (event) => { const one = found(event); setTip(one ?? null); onHot(one ? one.trial : null); };
  if (!stays.length) return html`<p class="note">No trial has been in a slot yet.</p>`;
  const ending = (one) => (one.stop !== null ? duration(one.stop) : isRunning ? "now" : "the end of the record");
  return html`<section class="chart" aria-label="Slots over time">
    <div class="toolbar"><h3>When each trial trained</h3><button onClick=${() => savePng(canvas.current, "slots")}>PNG</button></div>
    <div><canvas ref=${canvas} role="img" data-name="slots" aria-label=${`${stays.length} stays of ${new Set(stays.map(([, trial]) => trial)).size} trials in ${slots.length} slots over ${duration(end)}; the table lists the trials.`}
      onPointerMove=${moved} onPointerLeave=${() => { setTip(null); onHot(null); }} onClick=${(event) => { const one = found(event); if (one) onPick(one.trial); }}></canvas></div>
    ${tip && html`<div class="tip" style=${{ left: `${Math.max(4, Math.min(tip.left + 8, width - 200))}px`, top: `${tip.top + 62}px` }}>trial ${tip.trial} in slot ${tip.slot}, ${duration(tip.start)} to ${ending(tip)}</div>`}
  </section>`;
}

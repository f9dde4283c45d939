// A chart of many curves on a canvas: hover, zoom by dragging, keyboard, PNG. Text is drawn or is a text node, never HTML.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { axis, lossAxis, wholeAxis, zeroAxis } from "./axes.js";
import { count, download, number } from "./format.js";

const LEFT = 58, RIGHT = 12, TOP = 10, BOTTOM = 40, NEAR = 40;

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function isDark() {
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Draw a trial's mark as the report has it. */
export function mark(context, shape, x, y, tone, paper, size = 4.6) {
  const path = new Path2D();
  const corners = { square: 4, diamond: 4, up: 3, down: 3, left: 3, right: 3, pentagon: 5, hexagon: 6 }[shape];
  if (corners) {
    const turn = { square: Math.PI / 4, up: -Math.PI / 2, down: Math.PI / 2, left: Math.PI, pentagon: -Math.PI / 2 }[shape] ?? 0;
    for (let index = 0; index < corners; index++) {
      const angle = turn + (2 * Math.PI * index) / corners;
      path.lineTo(x + 1.15 * size * Math.cos(angle), y + 1.15 * size * Math.sin(angle));
    }
    path.closePath();
  } else if (shape === "star") {
    for (let index = 0; index < 10; index++) {
      const [angle, far] = [-Math.PI / 2 + (Math.PI * index) / 5, index % 2 ? size * 0.7 : size * 1.7];
      path.lineTo(x + far * Math.cos(angle), y + far * Math.sin(angle));
    }
    path.closePath();
  } else if (shape === "cross" || shape === "plus" || shape === "bar") {
    const lines = { cross: [[-1, -1, 1, 1], [-1, 1, 1, -1]], plus: [[-1, 0, 1, 0], [0, -1, 0, 1]], bar: [[0, -1, 0, 1]] }[shape];
    for (const [a, b, c, d] of lines) { path.moveTo(x + a * size, y + b * size); path.lineTo(x + c * size, y + d * size); }
    context.strokeStyle = tone; context.lineWidth = 2; context.stroke(path);
    return;
  } else path.arc(x, y, size * 0.9, 0, 2 * Math.PI);
  context.strokeStyle = paper; context.lineWidth = 1.6; context.stroke(path);
  context.fillStyle = tone; context.fill(path);
}

function frame(context, { width, height, x, y, xLabel, yLabel, xText }) {
  const [soft, line] = [colour("--soft"), colour("--line")];
  context.font = "11px system-ui, sans-serif";
  context.lineWidth = 1; context.strokeStyle = line; context.fillStyle = soft;
  context.textBaseline = "middle"; context.textAlign = "right";
  const [right, base] = [width - RIGHT, height - BOTTOM];
  for (const tick of y.ticks) {
    const at = Math.round(base - y.share(tick) * (base - TOP)) + 0.5;
    if (at < TOP - 1 || at > base + 1) continue;
    context.beginPath(); context.moveTo(LEFT, at); context.lineTo(right, at); context.stroke();
    context.fillText(Math.abs(tick) >= 1e4 ? count(tick) : number(tick, 3), LEFT - 6, at);
  }
  context.textAlign = "center"; context.textBaseline = "top";
  let free = -Infinity;
  for (const tick of x.ticks) {
    const at = Math.round(LEFT + x.share(tick) * (right - LEFT)) + 0.5;
    if (at < LEFT - 1 || at > right + 1) continue;
    const text = xText ? xText(tick) : number(tick, 4);
    const half = context.measureText(text).width / 2;
    context.beginPath(); context.moveTo(at, base); context.lineTo(at, base + 4); context.stroke();
    if (at - half < free) continue;
    context.fillText(text, Math.min(at, right - half + 6), base + 7);
    free = at + half + 8;
  }
  context.strokeStyle = soft;
  context.beginPath(); context.moveTo(LEFT, base + 0.5); context.lineTo(right, base + 0.5); context.stroke();
  context.font = "12px system-ui, sans-serif";
  context.fillText(xLabel, (LEFT + right) / 2, height - 15);
  context.save();
  context.translate(11, (TOP + base) / 2); context.rotate(-Math.PI / 2);
  context.textBaseline = "middle";
  context.fillText(yLabel, 0, 0);
  context.restore();
}

function drawCurves(context, { width, height, x, y, curves, hot, quiet }) {
  const [paper, ink] = [colour("--paper"), colour("--ink")];
  const [right, base] = [width - RIGHT, height - BOTTOM];
  context.save();
  context.beginPath(); context.rect(LEFT, TOP - 4, right - LEFT + RIGHT, base - TOP + 8); context.clip();
  context.lineJoin = "round";
  const marks = [];
  const rank = (curve) => (curve.id === hot ? 3 : curve.best ? 2 : curve.strong ? 1 : 0);
  for (const curve of [...curves].sort((a, b) => rank(a) - rank(b))) {
    const isHot = curve.id === hot;
    const tone = curve.best ? ink : curve.tone;
    context.strokeStyle = tone;
    context.globalAlpha = isHot || curve.best || curve.strong ? 1 : quiet ? 0.16 : hot !== null ? 0.22 : 0.55;
    context.lineWidth = isHot ? 3 : curve.best ? 2.4 : curve.strong ? 2 : 1.15;
    context.setLineDash(curve.dash ?? []);
    context.beginPath();
    let down = false, last = null;
    for (let index = 0; index < curve.xs.length; index++) {
      const value = curve.ys[index];
      if (value === null || (y.log && value <= 0)) { down = false; continue; }
      // far outside, a canvas would draw for long; the clip hides it anyway
      const at = [LEFT + x.share(curve.xs[index]) * (right - LEFT), base - Math.max(-1, Math.min(2, y.share(value))) * (base - TOP)];
      if (down) context.lineTo(...at); else context.moveTo(...at);
      down = true; last = at;
    }
    context.stroke();
    if (last && (curve.shape || curve.xs.length === 1)) marks.push([curve, last, context.globalAlpha, tone]);
  }
  context.setLineDash([]);
  for (const [curve, [atX, atY], alpha, tone] of marks) {
    context.globalAlpha = Math.max(alpha, hot === null && !quiet ? 0.95 : alpha);
    mark(context, curve.best ? "star" : curve.shape ?? "circle", atX, Math.max(TOP, atY), tone, paper);
  }
  context.restore();
}

function nearest(curves, x, y, size, [atX, atY]) {
  let found = null, least = NEAR * NEAR;
  const [right, base] = [size.width - RIGHT, size.height - BOTTOM];
  for (const curve of curves) {
    for (let index = 0; index < curve.xs.length; index++) {
      const value = curve.ys[index];
      if (value === null) continue;
      const dx = LEFT + x.share(curve.xs[index]) * (right - LEFT) - atX;
      if (dx > NEAR || dx < -NEAR) continue;
      const dy = base - y.share(value) * (base - TOP) - atY;
      const far = dx * dx + dy * dy;
      if (far < least) { least = far; found = { curve, index, x: dx + atX, y: dy + atY }; }
    }
  }
  return found;
}

/** Keep a canvas as wide as its place and as sharp as the screen. */
export function useCanvas(draw, height, needs) {
  const canvas = useRef(null);
  const [width, setWidth] = useState(0);
  const [dark, setDark] = useState(isDark());
  useEffect(() => {
    // a page may have been left before its effects run
    if (!canvas.current) return undefined;
    const watcher = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watcher.observe(canvas.current.parentElement);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(scheme.matches);
    scheme.addEventListener("change", changed);
    return () => { watcher.disconnect(); scheme.removeEventListener("change", changed); };
  }, []);
  useEffect(() => {
    if (!width || !canvas.current) return;
    const scale = devicePixelRatio || 1;
    const element = canvas.current;
    if (element.width !== Math.round(width * scale) || element.height !== Math.round(height * scale)) {
      element.width = Math.round(width * scale); element.height = Math.round(height * scale);
      element.style.height = `${height}px`;
    }
    const context = element.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    draw(context, { width, height });
  }, [width, height, dark, ...needs]);
  return [canvas, width];
}

/** Save a canvas as a PNG on paper, so that it can be pasted anywhere. */
export function savePng(canvas, name) {
  const copy = document.createElement("canvas");
  copy.width = canvas.width; copy.height = canvas.height;
  const context = copy.getContext("2d");
  context.fillStyle = colour("--paper"); context.fillRect(0, 0, copy.width, copy.height);
  context.drawImage(canvas, 0, 0);
  copy.toBlob((blob) => download(`${name}.png`, blob));
}

/**
 * curves: [{id, label, xs, ys, tone, shape, best, strong, dash}]; zoom: [low, high] or null; hot: the id pointed at.
 */
export function Chart({ title, name, curves, xLabel, yLabel, xText, range, zoom, onZoom, hot, onHot, onPick, height = 330, tools, fromZero, whole }) {
  const [drag, setDrag] = useState(null);
  const [tip, setTip] = useState(null);
  const [from, to] = zoom ?? range;
  const x = useMemo(() => axis(from, to), [from, to]);
  const y = useMemo(() => (whole ? wholeAxis(curves) : fromZero ? zeroAxis(curves) : lossAxis(curves, [from, to])), [curves, from, to]);
  const hasStrong = useMemo(() => curves.some((curve) => curve.strong), [curves]);
  const started = useRef(null);
  const [canvas, width] = useCanvas((context, size) => {
    frame(context, { ...size, x, y, xLabel, yLabel, xText });
    if (!curves.some((curve) => curve.xs.length)) {
      context.fillStyle = colour("--soft"); context.font = "14px system-ui, sans-serif"; context.textAlign = "center";
      context.fillText("Nothing to draw yet.", (LEFT + size.width - RIGHT) / 2, (TOP + size.height - BOTTOM) / 2);
    }
    drawCurves(context, { ...size, x, y, curves, hot: hot ?? null, quiet: hasStrong && hot === null });
    if (drag) {
      context.fillStyle = colour("--accent"); context.globalAlpha = 0.16;
      context.fillRect(Math.min(...drag), TOP, Math.abs(drag[1] - drag[0]), size.height - BOTTOM - TOP);
      context.globalAlpha = 1;
    }
  }, height, [curves, x, y, hot, drag, xLabel, yLabel, hasStrong]);

  const point = (event) => {
    const box = canvas.current.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const valueAt = (pixel) => from + ((pixel - LEFT) / (width - RIGHT - LEFT)) * (to - from);
  const moved = (event) => {
    const at = point(event);
    if (started.current !== null) {
      setDrag([started.current, Math.max(LEFT, Math.min(width - RIGHT, at[0]))]);
      return;
    }
    const found = nearest(curves, x, y, { width, height }, at);
    setTip(found);
    onHot?.(found ? found.curve.id : null);
  };
  const ended = (event) => {
    const began = started.current;
    started.current = null;
    if (drag && Math.abs(drag[1] - drag[0]) > 8) onZoom?.([valueAt(Math.min(...drag)), valueAt(Math.max(...drag))]);
    else if (began !== null && event.type === "pointerup") {
      const found = nearest(curves, x, y, { width, height }, point(event));
      if (found && event.pointerType === "mouse") onPick?.(found.curve.id);
      else { setTip(found); onHot?.(found ? found.curve.id : null); }
    }
    setDrag(null);
  };
  const scaled = (factor, shift = 0) => {
    const [middle, half] = [(from + to) / 2 + shift * (to - from), ((to - from) / 2) * factor];
    const next = [Math.max(range[0], middle - half), Math.min(range[1], middle + half)];
    onZoom?.(next[0] <= range[0] && next[1] >= range[1] ? null : next);
  };
  const keyed = (event) => {
    const ids = curves.map((curve) => curve.id);
    const step = (by) => {
      const id = ids[(ids.indexOf(hot) + by + ids.length) % ids.length] ?? null;
      const curve = curves.find((one) => one.id === id);
      onHot?.(id);
      if (curve?.xs.length) {
        const index = curve.ys.findLastIndex((value) => value !== null);
        if (index >= 0) setTip({ curve, index, x: LEFT + Math.min(1, x.share(curve.xs[index])) * (width - RIGHT - LEFT), y: TOP });
      }
    };
    const actions = {
      ArrowLeft: () => zoom && scaled(1, -0.2), ArrowRight: () => zoom && scaled(1, 0.2), ArrowUp: () => step(-1), ArrowDown: () => step(1),
      "+": () => scaled(0.6), "=": () => scaled(0.6), "-": () => scaled(1.7), Escape: () => { onZoom?.(null); onHot?.(null); setTip(null); },
      Enter: () => hot !== null && onPick?.(hot),
    };
    if (actions[event.key] && !event.ctrlKey && !event.metaKey) { actions[event.key](); event.preventDefault(); }
  };
  const said = tip ? `${tip.curve.label}: ${number(tip.curve.ys[tip.index])} at ${xText ? xText(tip.curve.xs[tip.index]) : number(tip.curve.xs[tip.index])}` : "";
  return html`<section class="chart" aria-label=${title}>
    <div class="toolbar"><h2>${title}</h2>${tools}
      <button onClick=${() => scaled(0.6)} aria-label=${`Zoom in: ${title}`}>+</button>
      <button onClick=${() => scaled(1.7)} disabled=${!zoom} aria-label=${`Zoom out: ${title}`}>−</button>
      <button onClick=${() => onZoom?.(null)} disabled=${!zoom}>All</button>
      <button onClick=${() => savePng(canvas.current, name)}>PNG</button>
    </div>
    <div><canvas ref=${canvas} tabindex="0" role="img" data-name=${name} data-curves=${curves.length}
      aria-label=${`${title}: ${curves.length} curves of ${yLabel} over ${xLabel}. Arrow keys choose a trial, Enter opens it, plus and minus zoom. The table holds the same numbers.`}
      onPointerMove=${moved} onPointerDown=${(event) => { if (event.button === 0) { started.current = Math.max(LEFT, point(event)[0]); event.pointerType === "mouse" && canvas.current.setPointerCapture(event.pointerId); } }}
      onPointerUp=${ended} onPointerCancel=${ended} onPointerLeave=${() => { if (started.current === null) { setTip(null); onHot?.(null); } }}
      onDblClick=${() => onZoom?.(null)} onKeyDown=${keyed}></canvas></div>
    ${tip && !drag && html`<div class="tip" style=${{ left: `${Math.max(4, Math.min(tip.x + 12, width - 190))}px`, top: `${Math.max(34, tip.y + 44)}px` }}>${said}${tip.curve.note ? html`<br />${tip.curve.note}` : ""}</div>`}
    <div class="hidden" aria-live="polite">${said}</div>
  </section>`;
}

/** A mark as a small drawing for keys and tables. */
export function Mark({ shape, tone }) {
  const canvas = useRef(null);
  useEffect(() => {
    const context = canvas.current.getContext("2d");
    context.setTransform(2, 0, 0, 2, 0, 0);
    context.clearRect(0, 0, 15, 15);
    mark(context, shape, 7.5, 7.5, tone, colour("--paper"));
  }, [shape, tone]);
  return html`<canvas ref=${canvas} width="30" height="30" style=${{ width: "15px", height: "15px", display: "inline-block", verticalAlign: "-2px" }} aria-hidden="true"></canvas>`;
}

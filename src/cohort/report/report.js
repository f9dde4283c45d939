"use strict";
(() => {
  const pointed = document.getElementById("pointed");
  const byTrial = new Map();
  for (const element of document.querySelectorAll("[data-trial]")) {
    const trial = element.dataset.trial;
    if (!byTrial.has(trial)) byTrial.set(trial, []);
    byTrial.get(trial).push(element);
  }
  let hot = null, pinned = null;
  const show = (trial) => {
    if (trial === hot) return;
    for (const element of byTrial.get(hot) ?? []) element.classList.remove("hot");
    for (const element of byTrial.get(trial) ?? []) element.classList.add("hot");
    hot = trial;
    document.body.classList.toggle("pointing", trial !== null);
    const row = trial === null ? null : document.querySelector(`tr[data-trial="${trial}"]`);
    pointed.hidden = row === null;
    if (row) pointed.textContent = row.dataset.summary;
  };
  const trialAt = (event) => event.target.closest?.("[data-trial]")?.dataset.trial ?? null;
  document.addEventListener("pointerover", (event) => show(trialAt(event) ?? pinned));
  document.addEventListener("focusin", (event) => show(trialAt(event) ?? pinned));
  document.addEventListener("click", (event) => {
    if (event.target.closest("button, summary, a")) return;
    const trial = trialAt(event);
    pinned = trial === pinned ? null : trial;
    show(pinned);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { pinned = null; show(null); }
  });
  const value = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const button of table.querySelectorAll("th button")) {
      button.addEventListener("click", () => {
        const header = button.closest("th"), column = header.cellIndex, body = table.tBodies[0];
        const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
        header.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
        const compare = (left, right) => {
          const a = value(left, column), b = value(right, column);
          if (a === "" || b === "") return a === b ? 0 : a === "" ? 1 : -1;
          const difference = a - b;
          return direction * (Number.isNaN(difference) ? a.localeCompare(b) : difference);
        };
        body.append(...[...body.rows].sort(compare));
      });
    }
  }
})();

// The frame of all pages: who the viewer is, which page the address names, and the way between pages.
import { html, render, useEffect, useState } from "./vendor/preact-htm.js";
import { get, link, openSession, place } from "./api.js";
import { Failure } from "./parts.js";
import { Runs } from "./pages/runs.js";

// a page is loaded when it is first opened; the list of runs, which most viewers see first, comes with the frame
const PAGES = {
  runs: { label: "Runs", load: async () => Runs },
  sweep: { load: async () => (await import("./pages/sweep.js")).Sweep },
  trial: { load: async () => (await import("./pages/trial.js")).Trial },
  compare: { label: "Compare", load: async () => (await import("./pages/compare.js")).Compare },
  playground: { label: "Playground", load: async () => (await import("./pages/playground.js")).Playground },
  queue: { label: "Queue", load: async () => (await import("./pages/queue.js")).Queue },
  system: { label: "System", load: async () => (await import("./pages/system.js")).System },
};

function usePlace() {
  const [at, setAt] = useState(place());
  useEffect(() => {
    const changed = () => setAt(place());
    addEventListener("hashchange", changed);
    addEventListener("placechange", changed);
    return () => { removeEventListener("hashchange", changed); removeEventListener("placechange", changed); };
  }, []);
  return at;
}

function SignIn({ onDone }) {
  const [key, setKey] = useState("");
  const [error, setError] = useState(null);
  const sent = async (event) => {
    event.preventDefault();
    try { onDone(await openSession({ key })); } catch (failure) { setError(failure); }
  };
  return html`<main id="main"><h1>Sign in</h1>
    <p>These pages need a key of the server: the value of <code>--api-key</code> or <code>COHORT_API_KEY</code> that it was started with.</p>
    <form onSubmit=${sent} class="row"><label class="grow"><span class="hidden">Key</span>
      <input type="password" placeholder="Key" autocomplete="current-password" value=${key} onInput=${(event) => setKey(event.target.value)} required /></label>
      <button class="primary">Sign in</button></form>
    <${Failure} error=${error} /></main>`;
}

function Frame() {
  const { page, query } = usePlace();
  const [session, setSession] = useState(null);
  const [error, setError] = useState(null);
  const [Page, setPage] = useState(null);
  useEffect(() => { openSession().then(setSession, setError); }, []);
  useEffect(() => {
    let isOld = false;
    setError(null);
    (PAGES[page] ?? PAGES.runs).load().then((found) => isOld || setPage(() => found), (failure) => setError(failure));
    return () => { isOld = true; };
  }, [page]);
  useEffect(() => { scrollTo(0, 0); }, [page, query.run, query.trial]);
  if (!session) return error ? html`<main id="main"><${Failure} error=${error} again=${() => location.reload()} /></main>` : null;
  const isOpen = session.is_open;
  const leave = async () => setSession(await openSession({ leave: true }));
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the page</a>
    <header class="top"><a class="brand" href=${link("runs")}>Cohort</a>
      ${isOpen ? html`<nav aria-label="Pages">${Object.entries(PAGES).filter(([, entry]) => entry.label).map(([name, entry]) =>
        html`<a href=${link(name)} aria-current=${page === name ? "page" : null}>${entry.label}</a>`)}</nav>
        <span class="badge">${session.can_control ? "can change runs" : "read-only"}</span>
        ${session.needs_key ? html`<button onClick=${leave}>Sign out</button>` : ""}` : ""}
    </header>
    ${!isOpen ? html`<${SignIn} onDone=${setSession} />` : html`<main id="main" tabindex="-1">
      ${error ? html`<${Failure} error=${error} again=${() => location.reload()} />` : ""}
      ${Page ? html`<${Page} key=${`${page}|${query.run ?? ""}|${query.trial ?? ""}`} query=${query} session=${session} />` : ""}
    </main>`}`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${Frame} />`, root);

export { get };

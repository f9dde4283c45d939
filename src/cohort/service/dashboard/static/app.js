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
  service: { label: "Service", load: async () => (await import("./pages/service.js")).Service },
  system: { label: "System", load: async () => (await import("./pages/system.js")).System },
};
// pages without an entry of their own in the navigation, and the one that they are reached from
const BELOW = { sweep: "runs", trial: "runs" };

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

function SignIn({ session, hasEnded, onDone }) {
  const [key, setKey] = useState("");
  const [error, setError] = useState(null);
  const sent = async (event) => {
    event.preventDefault();
    try { onDone(await openSession({ key })); } catch (failure) { setError(failure); }
  };
  return html`<main id="main"><h1>Sign in</h1>
    ${hasEnded ? html`<p role="alert"><strong>Your session has ended:</strong> its key was revoked or has expired, or its time is over.</p>` : ""}
    <p>These pages need a key of the server: ${session.key_hint}.</p>
    <form onSubmit=${sent} class="row"><label class="grow"><span class="hidden">Key</span>
      <input type="password" placeholder="Key" autocomplete="current-password" value=${key} onInput=${(event) => setKey(event.target.value)} required /></label>
      <button class="primary">Sign in</button></form>
    <${Failure} error=${error} /></main>`;
}

function Frame() {
  const { page: named, query } = usePlace();
  const [session, setSession] = useState(null);
  const [error, setError] = useState(null);
  const [loaded, setPage] = useState(null);
  const [hasEnded, setEnded] = useState(false);
  const shown = session?.pages ?? [];
  // the page loads while the server says who the viewer is
  const page = session ? (shown.includes(named) || shown.includes(BELOW[named]) ? named : shown[0]) : named || "runs";
  useEffect(() => { openSession().then(setSession, setError); }, []);
  useEffect(() => {
    const ended = () => openSession().then((found) => { setEnded(!found.is_open); setSession(found); }, setError);
    addEventListener("signedout", ended);
    return () => removeEventListener("signedout", ended);
  }, []);
  useEffect(() => {
    let isOld = false;
    setError(null);
    PAGES[page]?.load().then((found) => isOld || setPage({ page, found }), (failure) => setError(failure));
    return () => { isOld = true; };
  }, [page]);
  useEffect(() => { scrollTo(0, 0); }, [page, query.run, query.trial, query.project]);
  if (!session) return error ? html`<main id="main"><${Failure} error=${error} again=${() => location.reload()} /></main>` : null;
  const isOpen = session.is_open;
  const leave = async () => { setEnded(false); setSession(await openSession({ leave: true })); };
  const entered = (found) => { setEnded(false); setSession(found); };
  const changes = [session.can_control && "runs", session.can_change && "tenants"].filter(Boolean).join(" and ");
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the page</a>
    <header class="top"><a class="brand" href=${link(shown[0])}>Cohort</a>
      ${isOpen ? html`<nav aria-label="Pages">${shown.map((name) =>
        html`<a href=${link(name)} aria-current=${page === name ? "page" : BELOW[page] === name ? "true" : null}>${PAGES[name].label}</a>`)}</nav>
        <span class="badge">${changes ? `can change ${changes}` : "read-only"}</span>
        ${session.needs_key ? html`<button onClick=${leave}>Sign out</button>` : ""}` : ""}
    </header>
    ${!isOpen ? html`<${SignIn} session=${session} hasEnded=${hasEnded} onDone=${entered} />` : html`<main id="main" tabindex="-1">
      ${error ? html`<${Failure} error=${error} again=${() => location.reload()} />` : ""}
      ${loaded?.page === page ? html`<${loaded.found} key=${`${page}|${query.run ?? ""}|${query.trial ?? ""}|${query.project ?? ""}`} query=${query} session=${session} />` : ""}
    </main>`}`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${Frame} />`, root);

export { get };

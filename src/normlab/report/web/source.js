/**
 * Where the pages over runs get their data: from the page itself, or from the server it came from, followed as it grows.
 * New lines are put in as they were written; everything that is computed (means of losses, findings) comes with the next whole view.
 */

const AGAIN = 5000, SOON = 300; // milliseconds until the view is asked for again
const COLUMNS = 400; // of a quantity, until then

/** @typedef {{step: number, values?: Record<string, Record<string, number | null>>, event?: string}} Written a line of readings */

/**
 * Puts lines into a view. Telling it a line twice changes nothing.
 * @param {any} view
 * @param {Written[]} lines
 */
export function merge(view, lines) {
  view.fresh ??= [];
  for (const { step, values } of lines) {
    view.last_step = Math.max(view.last_step, step);
    for (const [name, sites] of Object.entries(values ?? {})) {
      if (name === "loss") {
        const value = Object.values(sites)[0], last = view.fresh.length ? view.fresh[view.fresh.length - 1][0] : (view.curves.train[0]?.steps.at(-1) ?? 0);
        if (step > last && value !== null) view.fresh.push([step, value]);
        continue;
      }
      const kept = view.quantities.find((/** @type {any} */ q) => q.quantity === name);
      if (!kept || step < (kept.steps.at(-1) ?? 0)) continue;
      if (step > (kept.steps.at(-1) ?? 0)) {
        if (kept.steps.length >= COLUMNS) continue;
        kept.steps.push(step);
        kept.recorded += 1;
        for (const row of kept.values) row.push(null);
      }
      kept.sites.forEach((/** @type {string} */ site, /** @type {number} */ i) => { if (site in sites) kept.values[i][kept.values[i].length - 1] = sites[site]; });
    }
  }
}

/**
 * @typedef {object} Source
 * @property {any} data null: not there yet
 * @property {string | null} problem what the server says of it
 * @property {() => void} close
 */

/**
 * Data of one kind, asked for now and whenever it changes.
 * @param {string} kind
 * @param {string} at
 * @param {() => void} changed
 * @returns {Source}
 */
export function source(kind, at, changed) {
  const query = kind === "list" ? "" : `?at=${encodeURIComponent(at)}`;
  /** @type {EventSource | null} */
  let stream = null;
  let timer = 0, closed = false, due = Infinity;
  /** @type {{mark?: string, place?: string}} */
  const told = {}; // by the stream
  /** @type {Source} */
  const found = { data: null, problem: null, close: () => { closed = true; stream?.close(); clearTimeout(timer); } };

  /** @param {number} wait */
  function again(wait) {
    const when = Date.now() + wait;
    if (closed || when >= due) return;
    clearTimeout(timer);
    due = when;
    timer = setTimeout(() => { due = Infinity; ask(); }, wait);
  }

  async function ask() {
    try {
      const answer = await fetch(`data/${kind}${query}`), data = await answer.json();
      if (closed) return;
      if (answer.ok) {
        const same = found.problem === null && found.data?.mark === data.mark && found.data?.place === data.place; // the server keeps what took it long to make
        if (!same) found.data = data;
        found.problem = null;
        if (!stream) follow(data.place);
        else if (stale()) again(AGAIN);
        if (same) return;
      } else found.problem = String(data.error);
    } catch (error) {
      if (closed) return;
      found.problem = String(error);
      again(AGAIN);
    }
    changed();
  }

  const stale = () => (told.mark !== undefined && told.mark !== found.data.mark) || (told.place !== undefined && told.place !== found.data.place);

  /** @param {string} [place] */
  function follow(place) {
    stream = new EventSource(`events/${kind}${query}${place ? `&from=${place}` : ""}`);
    stream.addEventListener("lines", (event) => {
      if (!found.data) return;
      told.place = /** @type {MessageEvent} */ (event).lastEventId;
      merge(found.data, JSON.parse(/** @type {MessageEvent} */ (event).data));
      changed();
      again(AGAIN);
    });
    stream.addEventListener("problem", (event) => { found.problem = String(JSON.parse(/** @type {MessageEvent} */ (event).data).error); changed(); });
    stream.addEventListener("anew", (event) => { told.place = /** @type {MessageEvent} */ (event).lastEventId; again(SOON); });
    for (const name of ["info", "changed"]) stream.addEventListener(name, (event) => {
      told.mark = JSON.parse(/** @type {MessageEvent} */ (event).data).mark;
      if (found.problem !== null || stale()) again(SOON);
    });
  }

  ask();
  return found;
}

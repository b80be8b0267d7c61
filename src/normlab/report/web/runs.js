/** The pages over runs: of one run, sweep, benchmark or run of claims that is in the page, or of all that a server's folder holds. */

import { claims } from "./pages/claims.js";
import { compare } from "./pages/compare.js";
import { depth } from "./pages/depth.js";
import { diagnosis } from "./pages/diagnosis.js";
import { geometry } from "./pages/geometry.js";
import { kernels } from "./pages/kernels.js";
import { linkTo, runList, waiting } from "./pages/list.js";
import { statistics } from "./pages/statistics.js";
import { sweepDepth } from "./pages/sweep_depth.js";
import { sweepDiagnosis } from "./pages/sweep_diagnosis.js";
import { h } from "./elements.js";
import { address, embedded, start } from "./shell.js";
import { source } from "./source.js";

const { texts, view, address: asked, ...known } = embedded(); // known: words for names out of data, and limits
const PAGES = { list: [runList], run: [diagnosis, depth, statistics, geometry], sweep: [compare, sweepDepth, sweepDiagnosis], claims: [claims], kernels: [kernels] };

/** @typedef {keyof typeof PAGES} Kind */
/** @returns {[Kind, string]} */
function place() {
  const now = address();
  for (const kind of /** @type {const} */ (["run", "sweep", "claims", "kernels"]))
    if (now.has(kind)) {
      try {
        return [kind, decodeURIComponent(now.get(kind) ?? "")];
      } catch {
        return [kind, ""];
      }
    }
  return ["list", ""];
}

if (view) {
  const data = { ...view, ...known }, pages = PAGES[/** @type {Kind} */ (view.kind)];
  start(texts, { pages: () => pages, data: () => data, footer: "footer" }, asked);
} else {
  let [kind, at] = place();
  /** @type {import("./shell.js").Site} */
  const site = {
    pages: () => (got.data ? PAGES[kind] : [waiting]),
    data: () => (got.data ? Object.assign(got.data, known) : { problem: got.problem }),
    footer: "footer.served",
    place: (t) => [
      kind === "list" ? null : h("p", { class: "crumbs" }, h("a", { href: linkTo(address(), "list", "").replace("list=&", "").replace("list=", "page=run-list") }, t("list.all")), ...parents(t)),
      got.data && got.problem ? h("p", { class: "reading bad", translate: "no" }, got.problem) : null],
    moved: () => {
      const [newKind, newAt] = place();
      if (newKind === kind && newAt === at) return;
      got.close();
      [kind, at] = [newKind, newAt];
      got = source(kind, at, changed);
      scrollTo(0, 0);
    },
  };
  /** The sweep that a trial belongs to. */
  const parents = (/** @type {import("./elements.js").Context["t"]} */ t) => {
    const found = /^(?:(.*)\/)?trials\/[^/]+$/.exec(kind === "run" ? at : "");
    return found ? [" / ", h("a", { href: linkTo(address(), "sweep", found[1] ?? ".")}, found[1] ?? t("list.sweep.of"))] : [];
  };
  let said = "";
  /** @type {ReturnType<typeof start> | null} */
  let shell = null;
  const changed = () => {
    if (said !== (got.problem ?? "")) shell?.show();
    else shell?.update();
    said = got.problem ?? "";
  };
  let got = source(kind, at, changed);
  shell = start(texts, site);
}

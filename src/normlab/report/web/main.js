/** The explorer and the playground: pages that need nothing but this file. */

import { fluctuation } from "./pages/fluctuation.js";
import { numbers } from "./pages/numbers.js";
import { places } from "./pages/places.js";
import { playground } from "./pages/playground.js";
import { scaling } from "./pages/scaling.js";
import { shelf } from "./pages/shelf.js";
import { sphere } from "./pages/sphere.js";
import { embedded, start } from "./shell.js";

const data = embedded();

start(data.texts, { pages: () => [playground, shelf, numbers, places, sphere, scaling, fluctuation], data: () => data, footer: "footer" });

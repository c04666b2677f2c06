// Asks the site's search as its pages do: the worker that is shipped builds its index from the shipped file.
// Usage: node search.js SITE < a JSON list of questions > a JSON list of the pages found for each, best first.
"use strict";
const fs = require("node:fs"), path = require("node:path"), vm = require("node:vm");

const site = process.argv[2], worker = path.join(site, "assets", "javascripts", "search.js");
const [SETUP, QUERY, RESULT] = [0, 2, 3]; // mkdocs-material, src/templates/assets/javascripts/integrations/search/worker/message
let listener = null, waiting = null;
vm.runInNewContext(fs.readFileSync(worker, "utf8"), {
  addEventListener: (_, given) => { listener = given; },
  postMessage: (message) => { waiting?.(message); },
});

const ask = (type, data) => new Promise((resolve) => { waiting = resolve; listener({ data: { type, data } }); });

(async () => {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search", "search_index.json"), "utf8"));
  await ask(SETUP, { config: index.config, docs: index.docs, options: { suggest: true } });
  const found = [];
  for (const question of JSON.parse(fs.readFileSync(0, "utf8"))) {
    const { type, data } = await ask(QUERY, question);
    if (type !== RESULT) throw new Error(`the worker answered ${type} to ${question}`);
    found.push(data.items.map((group) => group[0].location));
  }
  process.stdout.write(JSON.stringify(found));
})();

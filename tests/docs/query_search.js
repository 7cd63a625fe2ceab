// Query a built site as its search box does: run the search worker of the theme on the search index.
//
//     node query_search.js SITE QUERY...
//
// Prints a JSON list for each query: the locations of the pages, the best first.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...queries] = process.argv.slice(2);
const workers = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(workers).find((name) => /^search\..*\.js$/.test(name));
const { config, docs } = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json")));

let receive;
const answers = [];
globalThis.self = globalThis;
globalThis.addEventListener = (_, listener) => { receive = listener; };
globalThis.postMessage = (message) => answers.push(message);
// The worker turns errors of a query into warnings, and answers that nothing was found.
console.warn = (problem) => { if (problem instanceof Error) throw problem; };
vm.runInThisContext(fs.readFileSync(path.join(workers, worker), "utf8"));

(async () => {
  await receive({ data: { type: 0, data: { config, docs, options: { suggest: false } } } });
  for (const query of queries) await receive({ data: { type: 2, data: query } });
  for (const { type, data } of answers) {
    if (type === 3) console.log(JSON.stringify(data.items.map((sections) => sections[0].location)));
  }
})();

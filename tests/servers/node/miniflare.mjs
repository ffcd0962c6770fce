// Starts miniflare from one JSON argument: two workers, the REST API in front of the one under test.

import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const { Miniflare } = createRequire(join(process.env.PENSTOCK_NODE_FOLDER, "package.json"))("miniflare");

const options = JSON.parse(process.argv[2]);
const COMPATIBILITY_DATE = "2025-01-01";

const rest = {
  name: "rest",
  ...moduleAt(fileURLToPath(new URL("rest.mjs", import.meta.url))),
  compatibilityDate: COMPATIBILITY_DATE,
  bindings: { account: options.account, token: options.token },
  // Named by what they hold: the REST API addresses databases and namespaces, not bindings.
  d1Databases: named("d1", options.d1),
  kvNamespaces: named("kv", options.kv),
  serviceBindings: options.script ? { worker: "worker" } : {},
};

const worker = {
  name: "worker",
  ...moduleAt(options.script ?? ""),
  compatibilityDate: COMPATIBILITY_DATE,
  bindings: options.variables,
  d1Databases: options.d1,
  kvNamespaces: options.kv,
  durableObjects: Object.fromEntries(
    Object.entries(options.durableObjects).map(([name, className]) => [
      name,
      { className, useSQLite: true },
    ]),
  ),
};

// The runtime names modules by their path below a root and takes none that lies outside it.
function moduleAt(scriptPath) {
  return { modules: true, scriptPath, modulesRoot: dirname(scriptPath) };
}

function named(kind, bindings) {
  return Object.fromEntries(Object.values(bindings).map((id) => [`${kind}:${id}`, id]));
}

const miniflare = new Miniflare({
  host: options.host,
  port: options.port,
  // No request for a sample of `request.cf`: tests run without a network.
  cf: false,
  defaultPersistRoot: options.data,
  d1Persist: join(options.data, "d1"),
  kvPersist: join(options.data, "kv"),
  durableObjectsPersist: join(options.data, "do"),
  workers: options.script ? [rest, worker] : [rest],
});

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, () => miniflare.dispose().finally(() => process.exit(0)));
}

await miniflare.ready;

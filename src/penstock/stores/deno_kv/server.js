// The program behind DenoKvStore: records under keys, compared and swapped.
//
// A write checks the versionstamp that its caller has read, and Deno KV commits it only if that is
// still the one. Stamps are never used twice, so a record that was deleted and written anew is
// not mistaken for the old one.
//
// Run: PENSTOCK_TOKEN=... deno run --unstable-kv --allow-net --allow-env --allow-read --allow-write server.js
// HOST (127.0.0.1) and PORT (8000) say where it listens, PENSTOCK_KV_PATH which file it uses; on
// Deno Deploy none of the three is needed. The token is the environment variable PENSTOCK_TOKEN.

const kv = await Deno.openKv(Deno.env.get("PENSTOCK_KV_PATH"));
const token = Deno.env.get("PENSTOCK_TOKEN");

// What this server does beside single operations.
const SEVERAL = ["read_all", "all"];

const hostname = Deno.env.get("HOST") ?? "127.0.0.1";
const port = Number(Deno.env.get("PORT") ?? 8000);
Deno.serve({ hostname, port }, (request) =>
  serve(request, token, async (namespace, operation) => {
    const named = (key) => ["penstock", namespace, key];
    if (operation.op === "read_all") {
      return { found: (await kv.getMany(operation.keys.map(named))).map(held) };
    }
    const found = async () => held(await kv.get(named(operation.key)));
    if (operation.op === "read") return { found: await found() };
    const parts = operation.op === "all" ? operation.operations : [operation];
    const atomic = kv.atomic();
    for (const part of parts) add(atomic, named(part.key), part);
    const { ok, versionstamp } = await atomic.commit();
    if (ok) return { done: true, stamp: versionstamp };
    return operation.op === "all" ? { done: false } : { done: false, found: await found() };
  }),
);

function held({ value, versionstamp }) {
  return value === null ? null : { ...value, stamp: versionstamp };
}

function add(atomic, key, { op, expected, record, version, keep_ms }) {
  if (op !== "drop" || expected !== undefined) atomic.check({ key, versionstamp: expected });
  if (op === "drop") atomic.delete(key);
  if (op === "swap") atomic.set(key, { record, version }, { expireIn: keep_ms });
}

// ---- The same in worker.js and server.js, each of which has to be deployable alone ----

const MOST_OPERATIONS = 64;

async function serve(request, token, perform) {
  if (!token) return answer(500, { error: "PENSTOCK_TOKEN is not set" });
  if (!(await same(request.headers.get("Authorization") ?? "", `Bearer ${token}`))) {
    return answer(401, { error: "missing or wrong bearer token" });
  }
  if (request.method !== "POST") return answer(405, { error: "use POST" });
  const body = await request.json().catch(() => null);
  const wrong = fault(body);
  if (wrong) return answer(400, { error: wrong });
  const tasks = body.operations.map(async (operation) => {
    try {
      return await perform(body.namespace, operation);
    } catch (error) {
      return { error: String(error?.message ?? error) };
    }
  });
  return answer(200, { answers: await Promise.all(tasks) });
}

function fault(body) {
  if (typeof body?.namespace !== "string") return "namespace must be a text";
  return faultOfAll(body.operations, ["read", "swap", "drop", ...SEVERAL]);
}

function faultOfAll(operations, known) {
  if (!Array.isArray(operations) || operations.length > MOST_OPERATIONS) {
    return `operations must be a list of at most ${MOST_OPERATIONS}`;
  }
  return operations.map((one) => faultOf(one, known)).find((wrong) => wrong) ?? "";
}

function faultOf(one, known) {
  if (!known.includes(one?.op)) return `op must be one of ${known.join(", ")}`;
  if (one.op === "all") return faultOfAll(one.operations, ["swap", "drop", "check"]);
  const keys = one.op === "read_all" ? one.keys : [one.key];
  if (!Array.isArray(keys) || keys.some((key) => typeof key !== "string" || key === "")) {
    return "key must be a text";
  }
  if (one.op !== "swap") return "";
  if (typeof one.record !== "string" || typeof one.version !== "string") {
    return "record and version must be texts";
  }
  if (!(Number.isSafeInteger(one.keep_ms) && one.keep_ms > 0)) return "keep_ms must be above 0";
  return "";
}

// Digests have one length and say nothing about where two tokens differ.
async function same(given, wanted) {
  const [a, b] = await Promise.all([given, wanted].map(digest));
  let difference = 0;
  for (let place = 0; place < a.length; place++) difference |= a[place] ^ b[place];
  return difference === 0;
}

async function digest(text) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
}

function answer(status, body) {
  return Response.json(body, { status });
}

// The Worker behind DurableObjectStore: records under keys, compared and swapped.
//
// One object holds one key. The runtime lets no other event into an object while it waits for its
// storage (the input gate), and lets no reply out before what was written is durable (the output
// gate); so reading, comparing and writing below is one step, and what is answered was kept.
//
// Deploy this file with wrangler.toml beside it; the token is the secret PENSTOCK_TOKEN.

import { DurableObject } from "cloudflare:workers";

export class Record extends DurableObject {
  async perform(operation) {
    const found = (await this.ctx.storage.get("held")) ?? null;
    if (operation.op === "read") return { found };
    const expected = operation.expected ?? null;
    const unconditional = operation.op === "drop" && expected === null;
    if (!unconditional && (found?.stamp ?? null) !== expected) return { done: false, found };
    if (operation.op === "drop") await this.#clear();
    else await this.#write(operation);
    return { done: true, stamp: operation.version };
  }

  async #write({ record, version, keep_ms }) {
    const keepUntil = Date.now() + keep_ms;
    await this.ctx.storage.put({ held: { record, version, stamp: version }, keepUntil });
    // One alarm at a time is enough: when it rings too early, it is set again.
    if ((await this.ctx.storage.getAlarm()) === null) await this.ctx.storage.setAlarm(keepUntil);
  }

  async #clear() {
    await this.ctx.storage.deleteAlarm();
    await this.ctx.storage.deleteAll();
  }

  // Only gives space back: whether a record still counts is decided by whoever reads it.
  async alarm() {
    const keepUntil = await this.ctx.storage.get("keepUntil");
    if (keepUntil > Date.now()) await this.ctx.storage.setAlarm(keepUntil);
    else await this.ctx.storage.deleteAll();
  }
}

export default {
  fetch(request, env) {
    return serve(request, env.PENSTOCK_TOKEN, (namespace, operation) => {
      const id = env.RECORDS.idFromName(JSON.stringify([namespace, operation.key]));
      return env.RECORDS.get(id).perform(operation);
    });
  },
};

// What this server does beside single operations: nothing, since an object holds one key.
const SEVERAL = [];

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

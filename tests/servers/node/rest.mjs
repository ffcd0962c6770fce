// The part of Cloudflare's REST API that our stores speak, over the bindings of this worker.

const PREFIX = "/client/v4";
const D1 = /^\/accounts\/([^/]+)\/d1\/database\/([^/]+)\/query$/;
const KV = /^\/accounts\/([^/]+)\/storage\/kv\/namespaces\/([^/]+)\/values\/([^/]+)$/;

export default {
  async fetch(request, env) {
    const url = new URL(request.url);
    if (!url.pathname.startsWith(`${PREFIX}/`)) {
      return env.worker ? env.worker.fetch(request) : failure(404, 7003, "no worker script was given");
    }
    if (request.headers.get("Authorization") !== `Bearer ${env.token}`) {
      return failure(401, 10000, "Authentication error");
    }
    try {
      return await route(request, env, url);
    } catch (error) {
      return failure(500, 10001, String(error));
    }
  },
};

function route(request, env, url) {
  const path = url.pathname.slice(PREFIX.length);
  if (path === "/user/tokens/verify") return success({ status: "active" });
  const [match, answer, kind] = D1.test(path)
    ? [D1.exec(path), query, "d1"]
    : [KV.exec(path), value, "kv"];
  if (!match) return failure(404, 7003, `Could not route to ${path}`);
  const [, account, id, key] = match.map((part) => part && decodeURIComponent(part));
  if (account !== env.account) return failure(403, 10000, "Authentication error");
  const binding = env[`${kind}:${id}`];
  if (!binding) return failure(404, kind === "d1" ? 7404 : 10013, `${kind} ${id} not found`);
  return answer(request, binding, key, url);
}

async function query(request, database) {
  if (request.method !== "POST") return failure(405, 10405, "Method not allowed");
  const body = await request.json();
  try {
    const statements = (body.batch ?? [body]).map(({ sql, params = [] }) =>
      database.prepare(sql).bind(...params),
    );
    return success(await database.batch(statements));
  } catch (error) {
    return failure(400, 7500, error.message);
  }
}

async function value(request, namespace, key, url) {
  switch (request.method) {
    case "GET": {
      const found = await namespace.get(key, "stream");
      return found ? new Response(found) : failure(404, 10009, "get: 'key not found'");
    }
    case "PUT": {
      const ttl = url.searchParams.get("expiration_ttl");
      try {
        await namespace.put(
          key,
          await request.arrayBuffer(),
          ttl === null ? {} : { expirationTtl: Number(ttl) },
        );
      } catch (error) {
        return failure(400, 10033, error.message);
      }
      return success(null);
    }
    case "DELETE":
      await namespace.delete(key);
      return success(null);
    default:
      return failure(405, 10405, "Method not allowed");
  }
}

function success(result) {
  return Response.json({ success: true, errors: [], messages: [], result });
}

function failure(status, code, message) {
  const body = { success: false, errors: [{ code, message }], messages: [], result: null };
  return Response.json(body, { status });
}

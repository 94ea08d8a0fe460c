// What a program sees of httpbin at a base URL, by the fetch of Node (undici): printed as JSON, to be compared.
const base = process.argv[2];
const headers = { 'user-agent': 'client/1' };
const seen = {};

async function plain(answer) {
  const kind = answer.headers.get('content-type') ?? '';
  if (!kind.includes('json')) return [answer.status, kind, (await answer.text()).length];
  const body = await answer.json();
  for (const own of ['headers', 'origin', 'url']) delete body[own];
  return [answer.status, kind, body];
}

const ask = async (name, path, init = {}) => {
  seen[name] = await plain(await fetch(base + path, { ...init, headers: { ...headers, ...init.headers } }));
};
await ask('query', '/get?q=a%20b&n=1&n=2');
await ask('json', '/post', { method: 'POST', body: JSON.stringify({ a: 1 }), headers: { 'content-type': 'application/json' } });
await ask('form', '/put', { method: 'PUT', body: new URLSearchParams({ a: 'ü' }) });
await ask('redirects', '/redirect/2');
await ask('gzip', '/gzip');
await ask('status', '/status/404');
const pieces = new ReadableStream({
  start(to) {
    for (const piece of ['one', 'two']) to.enqueue(new TextEncoder().encode(piece));
    to.close();
  },
});
await ask('chunked', '/post', { method: 'POST', body: pieces, duplex: 'half' });
const lines = (await (await fetch(base + '/stream/3', { headers })).text()).trim().split('\n');
seen.stream = lines.map((line) => JSON.parse(line).id);
console.log(JSON.stringify(seen, null, 1));

// One session of the second generation of the official TypeScript SDK; wish and answer as call.py says. `mode` in the wish
// is how it finds the revision: legacy, auto, or a revision to insist on.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { session } from './call_session.mjs';

await session((url, wish) => {
  const mode = ['legacy', 'auto'].includes(wish.mode) ? wish.mode : { pin: wish.mode };
  const client = new Client({ name: 'checkrein-rig', version: '1.0.0' }, { versionNegotiation: { mode } });
  return [client, new StreamableHTTPClientTransport(url)];
});

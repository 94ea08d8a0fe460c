// One session of the first generation of the official TypeScript SDK; wish and answer as call.py says.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { session } from './call_session.mjs';

await session((url) => {
  const client = new Client({ name: 'checkrein-rig', version: '1.0.0' });
  return [client, new StreamableHTTPClientTransport(url), (options) => [undefined, options]];
});

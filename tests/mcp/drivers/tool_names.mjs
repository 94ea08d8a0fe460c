// The names of a server's tools, one a line, in either era. usage: node tool_names.mjs URL
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const client = new Client({ name: 'checkrein-rig', version: '1.0.0' }, { versionNegotiation: { mode: 'auto' } });
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
for (const tool of (await client.listTools()).tools) console.log(tool.name);
await client.close();

// What both generations do alike: list all tools, make the calls, print one JSON document.
export async function session(open) {
  const wish = JSON.parse(process.argv[2]);
  const [client, transport, placed = (options) => [options]] = open(new URL(wish.url), wish);
  // Who wants to hear of progress is answered on a stream.
  const more = wish.progress ? placed({ onprogress: () => {} }) : [];
  await client.connect(transport);
  const { tools } = await client.listTools();
  const results = [];
  for (const [name, given] of wish.calls) results.push(await one(client, name, given, more));
  console.log(JSON.stringify({
    server: client.getServerVersion()?.name,
    protocol: client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion,
    tools: Object.fromEntries(tools.map((tool) => [tool.name, tool.description ?? ''])),
    results,
  }));
  await client.close();
}

async function one(client, name, given, more) {
  try {
    const result = await client.callTool({ name, arguments: given }, ...more);
    const text = (result.content ?? []).map((block) => block.text ?? '').join('\n');
    return { text, is_error: Boolean(result.isError), raised: null, structured: result.structuredContent };
  } catch (error) {
    return { text: '', is_error: null, raised: `${error.name}: ${error.message}` };
  }
}

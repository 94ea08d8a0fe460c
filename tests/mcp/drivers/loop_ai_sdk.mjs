// Vercel AI SDK: generateText over @ai-sdk/mcp, its mock model as the script. usage: as loop.py says
import * as ai from 'ai';
import * as test from 'ai/test';
import { experimental_createMCPClient, createMCPClient } from '@ai-sdk/mcp';

const [url, ...rest] = process.argv.slice(2);
const Mock = test.MockLanguageModelV4 ?? test.MockLanguageModelV3 ?? test.MockLanguageModelV2;
const client = await (createMCPClient ?? experimental_createMCPClient)({ transport: { type: 'http', url } });
const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 }, totalTokens: 2 };

let at = 0;
const model = new Mock({
  doGenerate: async () => {
    const asks = at < rest.length;
    const content = asks
      ? [{ type: 'tool-call', toolCallId: `call_${at}`, toolName: rest[at], input: rest[at + 1] }]
      : [{ type: 'text', text: 'done' }];
    at += 2;
    const reason = asks ? 'tool-calls' : 'stop';
    return { content, finishReason: { unified: reason, raw: reason }, usage, warnings: [] };
  },
});

const stopWhen = (ai.isStepCount ?? ai.stepCountIs)(20);
const result = await ai.generateText({ model, tools: await client.tools(), prompt: 'go', stopWhen });
for (const part of result.steps.flatMap((step) => step.content)) {
  if (part.type === 'tool-result' || part.type === 'tool-error') {
    console.log('TOOL_RESULT', JSON.stringify(part.output ?? String(part.error)));
  }
}
console.log('FINAL', result.text);
await client.close();
